"""Tiers, with the figures of real GPUs: those of their data sheets and of `nvidia-smi -q`."""

import pytest

from collector.health.signals import GPUSignals
from collector.health.tiers import Specs, class_of, specs_of, tier_by_specs, tier_of
from protocol.health import Tier
from protocol.inventory import GPUInfo
from tests.unit.collector.health_builders import gpu_info, signs

MIB = 1024**2
MHZ = 1_000_000


def info(
    model: str, mib: int, *, cores: int = 0, sm: int = 0, bits: int = 0, memory: int = 0
) -> GPUInfo:
    return gpu_info(
        model=model,
        memory_bytes=mib * MIB,
        core_count=cores,
        sm_clock_max_hertz=sm * MHZ,
        memory_bus_bits=bits,
        memory_clock_max_hertz=memory * MHZ,
    )


H100 = info("NVIDIA H100 80GB HBM3", 81559, cores=16896, sm=1980, bits=5120, memory=2619)
A100 = info("NVIDIA A100-SXM4-80GB", 81920, cores=6912, sm=1410, bits=5120, memory=1593)
L4 = info("NVIDIA L4", 23034, cores=7424, sm=2040, bits=192, memory=6251)
T4 = info("Tesla T4", 15360, cores=2560, sm=1590, bits=256, memory=5001)
RTX4090 = info("NVIDIA GeForce RTX 4090", 24564, cores=16384, sm=2520, bits=384, memory=10501)
MI300X = info("AMD Instinct MI300X", 196592, sm=2100, bits=8192, memory=1300)


@pytest.mark.parametrize(
    ("gpu", "terabytes", "teraflops", "tier"),
    [
        # 2 x 2.619 GHz x 5120 bit / 8 and 2 x 16896 x 1.98 GHz: 3.35 TB/s and 67 TFLOPS published.
        (H100, 2 * 2.619 * 640 / 1000, 2 * 16.896 * 1.98, Tier.FLAGSHIP),
        # 2.039 TB/s and 19.5 TFLOPS published.
        (A100, 2 * 1.593 * 640 / 1000, 2 * 6.912 * 1.41, Tier.PERFORMANCE),
        # 300 GB/s and 30.3 TFLOPS published.
        (L4, 2 * 6.251 * 24 / 1000, 2 * 7.424 * 2.04, Tier.STANDARD),
        # 320 GB/s and 8.1 TFLOPS published.
        (T4, 2 * 5.001 * 32 / 1000, 2 * 2.56 * 1.59, Tier.ENTRY),
        # 1008 GB/s and 82.6 TFLOPS published; its 24 GB keep it from a better tier.
        (RTX4090, 2 * 10.501 * 48 / 1000, 2 * 16.384 * 2.52, Tier.STANDARD),
        # Published: AMD's driver counts otherwise.
        (MI300X, 5.3, 163.4, Tier.FLAGSHIP),
    ],
    ids=["H100", "A100", "L4", "T4", "RTX-4090", "MI300X"],
)
def test_a_gpu_is_classed_by_its_figures(
    gpu: GPUInfo, terabytes: float, teraflops: float, tier: Tier
) -> None:
    figures = specs_of(gpu)
    assert figures.bandwidth == pytest.approx(terabytes * 1e12)
    assert figures.flops == pytest.approx(teraflops * 1e12)
    assert tier_by_specs(figures) is tier


@pytest.mark.parametrize(
    ("model", "mib", "tier"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, Tier.FLAGSHIP),
        ("NVIDIA H100 PCIe", 81559, Tier.PERFORMANCE),
        ("NVIDIA H200", 143771, Tier.FLAGSHIP),
        ("NVIDIA A100-SXM4-80GB", 81920, Tier.PERFORMANCE),
        ("NVIDIA L40S", 46068, Tier.PERFORMANCE),
        ("Tesla T4", 15360, Tier.ENTRY),
        ("AMD Instinct MI210", 65520, Tier.PERFORMANCE),
    ],
)
def test_a_known_model_is_classed_though_its_driver_reports_only_its_memory(
    model: str, mib: int, tier: Tier
) -> None:
    assert tier_by_specs(specs_of(info(model, mib))) is tier


def test_a_model_of_which_only_the_memory_is_known_is_standard_at_best() -> None:
    assert tier_by_specs(specs_of(info("Prototype", 200_000))) is Tier.STANDARD
    assert tier_by_specs(specs_of(info("Prototype", 2_000))) is Tier.ENTRY


def test_a_gpu_of_which_nothing_is_known_has_no_tier() -> None:
    assert tier_by_specs(Specs(None, None, None)) is None
    assert tier_of(GPUSignals(index=0, uuid="GPU-0")) is None


@pytest.mark.parametrize(
    ("gpu", "tier"),
    [
        # 70 % of 1980 MHz are 1386 MHz.
        (signs(load_clock_hertz=1_386e6), Tier.FLAGSHIP),
        (signs(load_clock_hertz=1_385e6), Tier.PERFORMANCE),
        (signs(reading={"pcie_width": 8.0}), Tier.PERFORMANCE),
        (signs(reading={"pcie_width": 8.0}, load_clock_hertz=900e6), Tier.PERFORMANCE),
        (signs(info=T4, load_clock_hertz=300e6), Tier.ENTRY),
        (signs(load_clock_hertz=None), Tier.FLAGSHIP),
    ],
    ids=["fast-enough", "slow", "narrow", "both-count-once", "no-tier-below-entry", "idle"],
)
def test_a_gpu_that_performs_below_its_model_is_one_tier_lower(gpu: GPUSignals, tier: Tier) -> None:
    assert tier_of(gpu) is tier


def test_the_class_of_an_appliance_names_the_best_tier_first() -> None:
    assert class_of([Tier.STANDARD, Tier.FLAGSHIP, Tier.STANDARD]) == "1 x flagship, 2 x standard"
    assert class_of([]) == "cpu"
    assert class_of([None]) == ""

"""GPUs that fell off the bus: said so, named as far as anybody can, and read again when back."""

from pathlib import Path

import pytest

from tests.fixtures.nvml import NVMLReader, World, chosen, reading
from tests.fixtures.nvml_dgx import UUID, gpu_fields, nvml, world

__all__ = ["nvml", "world"]


def test_a_gpu_that_is_lost_says_only_so_and_the_others_go_on(
    nvml: NVMLReader, world: World
) -> None:
    nvml.read(0)
    world.add("gpu 3 error 15", "seconds 10")
    nvml.read(10)
    readings = nvml.read(20)
    [lost] = chosen(readings, "gpu", gpu="3")
    assert lost.fields == {"lost": 1}
    assert lost.tags == {"gpu": "3", "uuid": f"{UUID}3", "model": "NVIDIA H100 80GB HBM3"}
    assert [gpu_fields(readings, gpu)["lost"] for gpu in (0, 2, 4, 7)] == [0, 0, 0, 0]
    assert chosen(readings, "gpu_link", gpu="3") == []


@pytest.mark.parametrize("error", [15, 16, 28, 999])
def test_a_gpu_that_fails_once_is_not_lost(nvml: NVMLReader, world: World, error: int) -> None:
    nvml.read(0)
    world.add(f"gpu 3 error {error}", "seconds 10")
    readings = nvml.read(10)
    assert chosen(readings, "gpu", gpu="3") == []
    assert len(chosen(readings, "gpu")) == 7
    world.add("gpu 3 error 0", "seconds 20")
    assert gpu_fields(nvml.read(20), 3)["lost"] == 0
    world.add("gpu 3 error 15", "seconds 30")
    assert chosen(nvml.read(30), "gpu", gpu="3") == []


@pytest.mark.parametrize("error", [15, 16, 28, 999])
def test_a_gpu_that_was_lost_before_is_known_by_its_index(
    nvml: NVMLReader, world: World, error: int
) -> None:
    world.add(f"gpu 3 error {error}")
    readings = nvml.read()
    assert [taken.tags for taken in chosen(readings, "gpu", gpu="3")] == [{"gpu": "3"}]
    assert len(chosen(readings, "gpu")) == 8


def kernel_module(
    proc: Path, *, uuid_of_fallen: str = "GPU-????????-????-????-????-????????????"
) -> Path:
    """The files of NVIDIA's kernel module for eight GPUs, of which GPU 3 fell off the bus."""
    for index, bus in enumerate(("1b", "43", "52", "61", "9d", "c3", "d1", "df")):
        folder = proc / "driver" / "nvidia" / "gpus" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        uuid = uuid_of_fallen if index == 3 else f"{UUID}{index}"
        (folder / "information").write_text(
            "Model: \t\t NVIDIA H100 80GB HBM3\n"
            f"IRQ:   \t\t {183 + index}\n"
            f"GPU UUID: \t {uuid}\n"
            "Video BIOS: \t 96.00.74.00.01\n"
            "Bus Type: \t PCIe\n"
            "DMA Size: \t 52 bits\n"
            "DMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t 0000:{bus}:00.0\n"
            f"Device Minor: \t {index}\n"
            "GPU Firmware: \t 550.127.05\n"
            "GPU Excluded:\t No\n"
        )
    return proc


@pytest.mark.parametrize(
    ("told", "uuid"),
    [
        (f"{UUID}3", f"{UUID}3"),
        ("GPU-????????-????-????-????-????????????", "PCI-0000:61:00.0"),
    ],
)
def test_a_gpu_that_was_lost_before_is_named_by_the_kernel_module(
    fake_nvml: Path, world: World, tmp_path: Path, told: str, uuid: str
) -> None:
    world.add("gpu 3 error 15")
    proc = kernel_module(tmp_path / "proc", uuid_of_fallen=told)
    with reading("nvml", fake_nvml, world.path, proc=proc) as nvml:
        [lost] = nvml.of("gpu", gpu="3")
    assert lost.tags == {"gpu": "3", "uuid": uuid, "model": "NVIDIA H100 80GB HBM3"}


def test_where_the_kernel_module_counts_otherwise_no_name_is_guessed(
    fake_nvml: Path, world: World, tmp_path: Path
) -> None:
    world.add("gpus 7", "gpu 3 error 15")
    proc = kernel_module(tmp_path / "proc")
    with reading("nvml", fake_nvml, world.path, proc=proc) as nvml:
        [lost] = nvml.of("gpu", gpu="3")
    assert lost.tags == {"gpu": "3"}


def test_a_gpu_that_the_driver_excludes_is_not_counted(
    fake_nvml: Path, world: World, tmp_path: Path
) -> None:
    world.add("gpus 7", "gpu 2 error 15")
    proc = kernel_module(tmp_path / "proc")
    first = proc / "driver/nvidia/gpus/0000:1b:00.0/information"
    first.write_text(first.read_text().replace("Excluded:\t No", "Excluded:\t Yes"))
    with reading("nvml", fake_nvml, world.path, proc=proc) as nvml:
        [lost] = nvml.of("gpu", gpu="2")
    assert lost.tags["uuid"] == "PCI-0000:61:00.0"


def test_a_lost_gpu_that_comes_back_is_read_again(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 3 error 16")
    assert gpu_fields(nvml.read(0), 3) == {"lost": 1}
    world.add("gpu 3 error 0")
    assert gpu_fields(nvml.read(10), 3)["utilization_percent"] == 94.0


@pytest.mark.parametrize("function", ["MemoryInfo_v2", "UUID", "Name", "PowerUsage", "MigMode"])
def test_a_query_that_fails_again_and_again_is_not_a_lost_gpu(
    nvml: NVMLReader, world: World, function: str
) -> None:
    nvml.read(0)
    world.add(f"refuse nvmlDeviceGet{function} 999")
    for second in (10, 20, 30):
        readings = nvml.read(second)
        assert [taken.fields["lost"] for taken in chosen(readings, "gpu")] == [0] * 8


def test_facts_whose_query_fails_once_are_read_the_next_time(
    nvml: NVMLReader, world: World
) -> None:
    world.add("fail nvmlDeviceGetMaxClockInfo 999 1", "fail nvmlDeviceGetFieldValues 999 1")
    assert "sm_clock_max_hertz" not in gpu_fields(nvml.read(0), 0)
    assert gpu_fields(nvml.read(10), 0)["sm_clock_max_hertz"] == 1_980_000_000

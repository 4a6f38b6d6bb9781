"""GPU facts that don't change at run time: limits, maximum clocks, capabilities."""

from pathlib import Path
from typing import Any

from plugins.base import ADDRESS_PREFIX
from plugins.nvml.calls import Calls, FieldBatch
from plugins.nvml.library import pynvml
from plugins.nvml.readings import MEGA, MILLI, die_celsius, scaled
from plugins.procfs import entries
from timeseries.points import FieldValue

THRESHOLDS = {
    "slowdown_celsius": (
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
    ),
    "shutdown_celsius": (
        pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT,
    ),
    "max_operating_celsius": (
        pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
        pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT,
    ),
}


def read_facts(calls: Calls) -> dict[str, FieldValue | None]:
    """Return the fields of `gpu` that are read once an hour, None where not supported."""
    ask = calls.ask
    sm_megahertz = ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)
    memory_megahertz = ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM)
    constraints = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
    ecc = ask(pynvml.nvmlDeviceGetEccMode)
    return {
        **_limits(calls),
        "power_limit_default_watts": scaled(
            ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit), 1 / MILLI
        ),
        "power_limit_min_watts": None if constraints is None else constraints[0] / MILLI,
        "power_limit_max_watts": None if constraints is None else constraints[1] / MILLI,
        "sm_clock_max_hertz": None if sm_megahertz is None else sm_megahertz * MEGA,
        "memory_clock_max_hertz": None if memory_megahertz is None else memory_megahertz * MEGA,
        "pcie_generation_max": ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
        "pcie_width_max": ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        "ecc_enabled": None if ecc is None else int(ecc[0]),
        "vgpu_licensed": _is_licensed(ask(pynvml.nvmlDeviceGetGridLicensableFeatures)),
    }


def _is_licensed(licenses: Any) -> int | None:  # noqa: ANN401 - NVML's structure
    """Return whether a feature of virtual GPUs is licensed; None where none needs to be."""
    if licenses is None or not licenses.isGridLicenseSupported:
        return None
    features = licenses.gridLicensableFeatures[: licenses.licensableFeaturesCount]
    return int(any(feature.featureState for feature in features))


def link_count(calls: Calls) -> int:
    """Return the number of NVLinks, which are numbered from 0."""
    key = (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)
    counted = FieldBatch(calls, [key]).read().get(key)
    if counted is not None:
        return min(counted, int(pynvml.NVML_NVLINK_MAX_LINKS))
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    states = [calls.ask(pynvml.nvmlDeviceGetNvLinkState, link) for link in links]
    return max((link + 1 for link in links if states[link] is not None), default=0)


def _limits(calls: Calls) -> dict[str, FieldValue | None]:
    """Return the temperature thresholds.

    Newer cards report thresholds, and their current margin, relative to the maximum operating
    temperature.
    """
    absolute = {
        name: calls.ask(pynvml.nvmlDeviceGetTemperatureThreshold, threshold)
        for name, (threshold, _) in THRESHOLDS.items()
    }
    margin = calls.ask(pynvml.nvmlDeviceGetMarginTemperature)
    celsius = die_celsius(calls.ask)
    if all(absolute.values()) or margin is None or celsius is None:
        return {name: scaled(value, 1) for name, value in absolute.items()}
    distances = FieldBatch(calls, [(field, 0) for _, field in THRESHOLDS.values()]).read()
    limits: dict[str, FieldValue | None] = {}
    for name, (_, field) in THRESHOLDS.items():
        distance = distances.get((field, 0))
        derived = None if distance is None else float(celsius + margin - distance)
        limits[name] = float(absolute[name]) if absolute[name] else derived
    return limits


FOLDER = Path("driver/nvidia/gpus")


def name_of_gpu(proc: Path, index: int, *, count: int) -> dict[str, str]:
    """Return the tags `uuid` and `model` of a GPU, by NVML index, from the kernel module.

    NVML numbers GPUs by PCI address. Without a unique match, nothing is returned. A GPU that was
    not initialized since boot has its PCI address as UUID.

    Args:
        proc: where `/proc` is.
        count: number of GPUs in NVML.
    """
    gpus = [(path.name, _read(path / "information")) for path in entries(proc / FOLDER)]
    counted = [gpu for gpu in gpus if gpu[1].get("GPU Excluded") != "Yes"]
    if len(counted) != count:
        return {}
    address, facts = counted[index]
    uuid = facts.get("GPU UUID", "")
    tags = {"uuid": uuid if uuid and "?" not in uuid else f"{ADDRESS_PREFIX}{address}"}
    if model := facts.get("Model", ""):
        tags["model"] = model
    return tags


def _read(path: Path) -> dict[str, str]:
    """Return the `Name: value` lines of a file; empty if unreadable."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}

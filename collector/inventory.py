"""What this appliance has: host, processors, memory, GPUs."""

import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from jobqueue.executors.wire import GPUInfo, Inventory
from plugins.base import PluginError
from plugins.simulation.config import SimulationConfig


def host_inventory(*, executors: Sequence[str] = ()) -> Inventory:
    """Return what is found on this host; GPUs only where NVIDIA's driver answers."""
    driver_version, gpus = _gpus()
    return Inventory(
        hostname=socket.gethostname(),
        os=_os_name(),
        kernel=platform.release(),
        cpu_model=_cpu_model(),
        cpu_count=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        driver_version=driver_version,
        gpus=gpus,
        executors=list(executors),
    )


def simulated_inventory(config: SimulationConfig, *, executors: Sequence[str] = ()) -> Inventory:
    """Return what a simulated appliance pretends to have."""
    return Inventory(
        hostname=config.hostname,
        os="Ubuntu 22.04.5 LTS (simulated)",
        kernel="5.15.0-1063-nvidia",
        cpu_model="Intel(R) Xeon(R) Platinum 8480CL",
        cpu_count=config.cpu_count,
        memory_bytes=config.memory_bytes,
        driver_version="550.127.05",
        gpus=[
            GPUInfo(
                index=index,
                uuid=uuid,
                model=config.gpu_model,
                memory_bytes=config.gpu_memory_bytes,
            )
            for index, uuid in enumerate(config.gpu_uuids)
        ],
        executors=list(executors),
    )


def _gpus() -> tuple[str, list[GPUInfo]]:
    from plugins.nvml.library import NVMLLibrary  # noqa: PLC0415 - NVML's bindings are heavy

    library = NVMLLibrary()
    try:
        devices = library.devices()
        return library.driver_version(), [
            GPUInfo(
                index=device.index,
                uuid=device.uuid,
                model=device.model,
                memory_bytes=device.memory_bytes,
            )
            for device in devices
        ]
    except PluginError:
        return "", []
    finally:
        library.close()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())

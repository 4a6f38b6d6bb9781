"""Compute modes of GPUs, over NVML in a process of its own: a driver that hangs holds up nobody."""

import subprocess
import sys

from collector.gpu_slices.base import SliceError
from plugins.base import PluginError

DEFAULT = 0
EXCLUSIVE_PROCESS = 3
"""One process has the GPU: under MPS, its server."""
TIMEOUT_SECONDS = 30


def switch_compute_mode(gpu_uuid: str, mode: int | None = None) -> int:
    """Set the compute mode of a GPU; return that of before. Without a mode, only return it.

    Raises:
        SliceError: the driver refuses, or does not answer in time.
    """
    words = [gpu_uuid] if mode is None else [gpu_uuid, str(mode)]
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "collector.gpu_slices.compute_mode", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SliceError(
            f"The NVIDIA driver did not set the compute mode of {gpu_uuid} within "
            f"{TIMEOUT_SECONDS} s. Check the appliance with nvidia-smi."
        ) from error
    if ended.returncode:
        reason = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SliceError(f"The compute mode of {gpu_uuid} can't be set: {reason[0]}")
    return int(ended.stdout)


def main(gpu_uuid: str, mode: str = "") -> int:
    """Print the compute mode of a GPU, and set another; return an exit status.

    A GPU without such modes, as in a virtual machine, is left as it is.
    """
    from plugins.nvml.library import NVMLLibrary, pynvml  # noqa: PLC0415 - only in this process

    try:
        devices = {device.uuid: device for device in NVMLLibrary().devices()}
        handle = devices[gpu_uuid].handle
        before = pynvml.nvmlDeviceGetComputeMode(handle)
        if mode and int(mode) != before:
            pynvml.nvmlDeviceSetComputeMode(handle, int(mode))
    except pynvml.NVMLError_NotSupported:
        sys.stdout.write(f"{DEFAULT}\n")
        return 0
    except pynvml.NVMLError_NoPermission:
        reason = "the driver wants the user root. See docs/gpu-slices.md for the agent's service."
    except KeyError:
        reason = "the driver does not list this GPU."
    except (PluginError, pynvml.NVMLError) as error:
        reason = str(error)
    else:
        sys.stdout.write(f"{before}\n")
        return 0
    sys.stderr.write(f"{reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

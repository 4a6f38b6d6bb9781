"""Variables by which NVIDIA's container toolkit gives a container devices of the host.

It reads them from the job and from the image, so that each has a value here.
Source: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
"""

from collections.abc import Mapping

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_DEFAULT_CAPABILITIES = ("compute", "utility")
# The driver's capabilities in a container: all but the displays of the host.
_ALLOWED_CAPABILITIES = frozenset({"compute", "compat32", "graphics", "ngx", "utility", "video"})
DEVICE_VARIABLES: Mapping[str, str] = {
    "NVIDIA_GDRCOPY": "disabled",
    "NVIDIA_GDS": "disabled",
    "NVIDIA_IMEX_CHANNELS": "void",
    "NVIDIA_MIG_CONFIG_DEVICES": "",
    "NVIDIA_MIG_MONITOR_DEVICES": "",
    "NVIDIA_MOFED": "disabled",
    "NVIDIA_NVSWITCH": "disabled",
    "NVIDIA_VISIBLE_DEVICES": "void",
}
"""Each with the value that gives nothing."""


def without_host_devices(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment by which a container gets no devices of the host."""
    wanted = environment.get(CAPABILITIES, "").split(",")
    allowed = [name for name in wanted if name in _ALLOWED_CAPABILITIES]
    capabilities = ",".join(allowed or _DEFAULT_CAPABILITIES)
    return {**environment, **DEVICE_VARIABLES, CAPABILITIES: capabilities}

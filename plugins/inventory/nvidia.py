"""NVIDIA GPUs and their interconnect, for the inventory.

Only this module of the plugin loads NVML's bindings.
"""

from dataclasses import dataclass
from itertools import combinations

import msgspec

from plugins.nvml.library import Device, NVMLLibrary, pynvml
from protocol.inventory import GPUInfo, GPUPath, NVLinkInfo

MEGA = 1_000_000
MILLI = 1000
SWITCH = "switch"
ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}
# The words of `nvidia-smi topo --matrix`.
ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


@dataclass(frozen=True, slots=True)
class NVIDIAParts:
    """Inventory from the NVIDIA driver."""

    driver_version: str
    cuda_version: str
    gpus: list[GPUInfo]
    paths: list[GPUPath]


class NVIDIAReader:
    """Reads the GPUs; facts that can't change are read once."""

    def __init__(self) -> None:
        self._library = NVMLLibrary()
        self._known: dict[str, GPUInfo] = {}
        self._far_ends: dict[tuple[str, int], str] = {}
        self._ancestors: dict[tuple[str, str], str] = {}

    def read(self) -> NVIDIAParts:
        """Return the responding GPUs."""
        devices = self._library.devices()
        uuid_at = {address: one.uuid for one in devices if (address := self._pci_address(one))}
        gpus = [self._gpu(device, uuid_at) for device in devices]
        pairs = combinations(zip(devices, gpus, strict=True), 2)
        paths = [self._path(first, second) for first, second in pairs]
        return NVIDIAParts(
            driver_version=self._library.driver_version(),
            cuda_version=self._library.cuda_version(),
            gpus=gpus,
            paths=[path for path in paths if path is not None],
        )

    def close(self) -> None:
        """Close NVML, and clear the cache: the driver may change."""
        self._library.close()
        self._known.clear()
        self._far_ends.clear()
        self._ancestors.clear()

    def _gpu(self, device: Device, uuid_at: dict[str, str]) -> GPUInfo:
        known = self._known.get(device.uuid)
        if known is None or known.index != device.index:
            known = self._known[device.uuid] = self._fixed_parts(device)
        ask, handle = self._library.ask, device.handle
        mig = ask(pynvml.nvmlDeviceGetMigMode, handle)
        return msgspec.structs.replace(
            known,
            pcie_generation=ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle) or 0,
            pcie_width=ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or 0,
            is_mig_enabled=bool(mig and mig[0]),
            nvlinks=self._nvlinks(device, uuid_at),
        )

    def _fixed_parts(self, device: Device) -> GPUInfo:
        ask, handle = self._library.ask, device.handle
        capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        architecture = ask(pynvml.nvmlDeviceGetArchitecture, handle)
        limits = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
        return GPUInfo(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_bytes=device.memory_bytes,
            core_count=ask(pynvml.nvmlDeviceGetNumGpuCores, handle) or 0,
            architecture=ARCHITECTURES.get(architecture, ""),
            compute_capability="{}.{}".format(*capability) if capability else "",
            memory_bus_bits=ask(pynvml.nvmlDeviceGetMemoryBusWidth, handle) or 0,
            sm_clock_max_hertz=self._max_clock(device, pynvml.NVML_CLOCK_SM),
            memory_clock_max_hertz=self._max_clock(device, pynvml.NVML_CLOCK_MEM),
            power_limit_max_watts=limits[1] / MILLI if limits else 0.0,
            pci_address=self._pci_address(device),
            pcie_generation_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle) or 0,
            pcie_width_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or 0,
            serial=str(ask(pynvml.nvmlDeviceGetSerial, handle) or ""),
            vbios_version=str(ask(pynvml.nvmlDeviceGetVbiosVersion, handle) or ""),
        )

    def _max_clock(self, device: Device, clock: int) -> int:
        megahertz = self._library.ask(pynvml.nvmlDeviceGetMaxClockInfo, device.handle, clock)
        return (megahertz or 0) * MEGA

    def _pci_address(self, device: Device) -> str:
        """Return the PCI address in the kernel's form, such as `0000:1b:00.0`."""
        known = self._known.get(device.uuid)
        if known is not None:
            return known.pci_address
        pci = self._library.ask(pynvml.nvmlDeviceGetPciInfo, device.handle)
        return _address(pci.busId) if pci is not None else ""

    def _nvlinks(self, device: Device, uuid_at: dict[str, str]) -> list[NVLinkInfo]:
        links: list[NVLinkInfo] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self._library.ask(pynvml.nvmlDeviceGetNvLinkState, device.handle, link)
            if state is None:
                if not links:
                    break  # a card without NVLink
                continue
            remote = self._far_end(device, link, uuid_at) if state else ""
            links.append(NVLinkInfo(link=link, is_active=bool(state), remote=remote))
        return links

    def _far_end(self, device: Device, link: int, uuid_at: dict[str, str]) -> str:
        """Return the UUID of the remote GPU, `switch`, or "" if unknown."""
        key = (device.uuid, link)
        if key not in self._far_ends:
            ask, handle = self._library.ask, device.handle
            kind = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            pci = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            remote = uuid_at.get(_address(pci.busId), "") if pci is not None else ""
            is_switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            self._far_ends[key] = SWITCH if is_switch else remote
        return self._far_ends[key]

    def _path(
        self, first: tuple[Device, GPUInfo], second: tuple[Device, GPUInfo]
    ) -> GPUPath | None:
        links = nvlinks_between(first[1], second[1])
        kind = f"NV{links}" if links else self._ancestor(first[0], second[0])
        if not kind:
            return None
        return GPUPath(first_index=first[0].index, second_index=second[0].index, kind=kind)

    def _ancestor(self, first: Device, second: Device) -> str:
        key = (first.uuid, second.uuid)
        if key not in self._ancestors:
            level = self._library.ask(
                pynvml.nvmlDeviceGetTopologyCommonAncestor, first.handle, second.handle
            )
            self._ancestors[key] = ANCESTORS.get(level, "")
        return self._ancestors[key]


def nvlinks_between(first: GPUInfo, second: GPUInfo) -> int:
    """Return the number of NVLinks between two GPUs, directly or through a switch."""
    direct = sum(link.is_active and link.remote == second.uuid for link in first.nvlinks)
    if direct:
        return direct
    to_switch = [
        sum(link.is_active and link.remote == SWITCH for link in gpu.nvlinks)
        for gpu in (first, second)
    ]
    return min(to_switch)


def _address(bus_id: bytes | str) -> str:
    """Return `0000:1b:00.0` for NVML's `00000000:1B:00.0`."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}" if rest else ""

"""NVIDIA GPUs and their interconnect, for the inventory.

Only this module of the plugin loads NVML's bindings.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from plugins.nvml.calls import Calls
from plugins.nvml.facts import link_count
from plugins.nvml.library import Device, NVMLLibrary, QueryFailedError, pynvml
from plugins.nvml.mig import read_mig_instances, read_mig_profiles
from protocol.gpu_slices import MIGInstance, MIGProfile
from protocol.inventory import GPUInfo, GPUPath, NVLinkInfo

log = logging.getLogger(__name__)

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
    """Reads the GPUs; facts that can't change are read once, and a failed query changes nothing.

    Args:
        host_memory_bytes: memory of the host, which some GPUs share.
    """

    def __init__(self, *, host_memory_bytes: int) -> None:
        self._host_memory_bytes = host_memory_bytes
        self._library = NVMLLibrary()
        self._answers: dict[tuple[object, ...], Any] = {}

    def read(self) -> NVIDIAParts:
        """Return the responding GPUs."""
        devices = self._library.devices()
        uuid_at = {
            address: device.uuid for device in devices if (address := self._pci_address(device))
        }
        gpus = [self._gpu(device, uuid_at) for device in devices]
        pairs = combinations(zip(devices, gpus, strict=True), 2)
        paths = [self._path(first, second) for first, second in pairs]
        cuda = self._answer(("cuda",), pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return NVIDIAParts(
            driver_version=str(self._answer(("driver",), pynvml.nvmlSystemGetDriverVersion) or ""),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=gpus,
            paths=[path for path in paths if path is not None],
        )

    def close(self) -> None:
        """Close NVML, and clear the cache: the driver may change."""
        self._library.close()
        self._answers.clear()

    def _answer(self, key: tuple[object, ...], call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - as NVML's
        """Return what NVML answers, or answered before if the call fails; None if unsupported."""
        try:
            self._answers[key] = self._library.ask(call, *args)
        except QueryFailedError as error:
            log.debug("%s", error)
        return self._answers.get(key)

    def _constant(self, device: Device, call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
        """Return what NVML answered before, or does now."""
        key = (device.uuid, call, *args)
        if key not in self._answers:
            return self._answer(key, call, device.handle, *args)
        return self._answers[key]

    def _gpu(self, device: Device, uuid_at: dict[str, str]) -> GPUInfo:
        constant = partial(self._constant, device)
        capability = constant(pynvml.nvmlDeviceGetCudaComputeCapability)
        limits = constant(pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        mig = self._current(device, pynvml.nvmlDeviceGetMigMode)
        memory_bytes, has_unified_memory = self._memory(device)
        return GPUInfo(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            memory_bytes=memory_bytes,
            has_unified_memory=has_unified_memory,
            core_count=constant(pynvml.nvmlDeviceGetNumGpuCores) or 0,
            architecture=ARCHITECTURES.get(constant(pynvml.nvmlDeviceGetArchitecture), ""),
            compute_capability="{}.{}".format(*capability) if capability else "",
            memory_bus_bits=constant(pynvml.nvmlDeviceGetMemoryBusWidth) or 0,
            sm_clock_max_hertz=self._max_clock(device, pynvml.NVML_CLOCK_SM),
            memory_clock_max_hertz=self._max_clock(device, pynvml.NVML_CLOCK_MEM),
            power_limit_max_watts=limits[1] / MILLI if limits else 0.0,
            pci_address=self._pci_address(device),
            pci_device_id=self._pci_id(device, "pciDeviceId"),
            pci_subsystem_id=self._pci_id(device, "pciSubSystemId"),
            pcie_generation=self._current(device, pynvml.nvmlDeviceGetCurrPcieLinkGeneration) or 0,
            pcie_generation_max=constant(pynvml.nvmlDeviceGetMaxPcieLinkGeneration) or 0,
            pcie_width=self._current(device, pynvml.nvmlDeviceGetCurrPcieLinkWidth) or 0,
            pcie_width_max=constant(pynvml.nvmlDeviceGetMaxPcieLinkWidth) or 0,
            serial=str(constant(pynvml.nvmlDeviceGetSerial) or ""),
            vbios_version=str(constant(pynvml.nvmlDeviceGetVbiosVersion) or ""),
            is_mig_capable=mig is not None,
            is_mig_enabled=bool(mig and mig[0]),
            is_mig_pending=bool(mig and mig[1]),
            mig_profiles=self._mig_profiles(device) if mig else [],
            mig_instances=self._mig_instances(device) if mig and mig[0] else [],
            nvlinks=self._nvlinks(device, uuid_at),
        )

    def _mig_profiles(self, device: Device) -> list[MIGProfile]:
        """Return the profiles, also while the mode is off, if they were read before."""
        key = (device.uuid, read_mig_profiles)
        before: list[MIGProfile] = self._answers.get(key) or []
        profiles = self._answer(key, partial(read_mig_profiles, self._library.ask), device.handle)
        self._answers[key] = profiles or before
        return profiles or before

    def _mig_instances(self, device: Device) -> list[MIGInstance]:
        """Return the instances that are complete."""
        key = (device.uuid, read_mig_instances)
        instances = self._answer(key, partial(read_mig_instances, self._library.ask), device.handle)
        return [made for made in instances or [] if made.uuid]

    def _memory(self, device: Device) -> tuple[int, bool]:
        """Return the memory in bytes, 0 if unknown, and whether it is the host's."""
        key = (device.uuid, "memory")
        if device.has_unified_memory:
            self._answers[key] = self._host_memory_bytes, True
        elif device.memory_bytes is not None:
            self._answers[key] = device.memory_bytes, False
        memory_bytes, is_unified = self._answers.get(key, (0, False))
        return memory_bytes, is_unified

    def _current(self, device: Device, call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
        return self._answer((device.uuid, call, *args), call, device.handle, *args)

    def _max_clock(self, device: Device, clock: int) -> int:
        megahertz = self._constant(device, pynvml.nvmlDeviceGetMaxClockInfo, clock)
        return (megahertz or 0) * MEGA

    def _pci_address(self, device: Device) -> str:
        """Return the PCI address in the kernel's form, such as `0000:1b:00.0`."""
        pci = self._constant(device, pynvml.nvmlDeviceGetPciInfo)
        return _address(pci.busId) if pci is not None else ""

    def _pci_id(self, device: Device, name: str) -> str:
        """Return vendor and device, such as `10de:2330`; NVML has them the other way round."""
        pci = self._constant(device, pynvml.nvmlDeviceGetPciInfo)
        number = getattr(pci, name, 0) if pci is not None else 0
        return f"{number & 0xFFFF:04x}:{number >> 16:04x}" if number else ""

    def _nvlinks(self, device: Device, uuid_at: dict[str, str]) -> list[NVLinkInfo]:
        links: list[NVLinkInfo] = []
        for link in range(self._link_count(device)):
            state = self._current(device, pynvml.nvmlDeviceGetNvLinkState, link)
            if state is not None:
                remote = self._far_end(device, link, uuid_at) if state else ""
                links.append(NVLinkInfo(link=link, is_active=bool(state), remote=remote))
        return links

    def _link_count(self, device: Device) -> int:
        """Return how many links the card has: drivers report a state for missing ones, too."""
        key = (device.uuid, link_count)
        if key in self._answers:
            return int(self._answers[key])
        calls = Calls(device.handle)
        count = link_count(calls)
        if not calls.failures:
            self._answers[key] = count
        return count

    def _far_end(self, device: Device, link: int, uuid_at: dict[str, str]) -> str:
        """Return the UUID of the remote GPU, `switch`, or "" if unknown."""
        kind = self._constant(device, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        pci = self._constant(device, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
        return uuid_at.get(_address(pci.busId), "") if pci is not None else ""

    def _path(
        self, first: tuple[Device, GPUInfo], second: tuple[Device, GPUInfo]
    ) -> GPUPath | None:
        links = nvlinks_between(first[1], second[1])
        kind = f"NV{links}" if links else self._ancestor(first[0], second[0])
        if not kind:
            return None
        return GPUPath(first_index=first[0].index, second_index=second[0].index, kind=kind)

    def _ancestor(self, first: Device, second: Device) -> str:
        key, call = (first.uuid, second.uuid), pynvml.nvmlDeviceGetTopologyCommonAncestor
        if key not in self._answers:
            self._answer(key, call, first.handle, second.handle)
        return ANCESTORS.get(self._answers.get(key), "")


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
    domain, _, address = text.lower().partition(":")
    return f"{domain[-4:]:0>4}:{address}" if address else ""

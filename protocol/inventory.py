"""The inventory of an appliance: hardware, driver and executors.

The portal rejects inventories above the limits, which are several times those of the largest hosts:
32 GPUs in a composable system, 18 NVLinks of a GPU, about 100 disks in a chassis.
"""

from typing import Annotated

import msgspec

from protocol.clusters import ClusterReport
from protocol.gangs import NetworkAbilities
from protocol.gpu_slices import MAX_INSTANCES, MAX_PROFILES, MIGInstance, MIGProfile

MAX_GPUS = 128
MAX_GPU_PATHS = MAX_GPUS * (MAX_GPUS - 1) // 2
MAX_NVLINKS = 64
MAX_DISKS = MAX_NICS = 1024
MAX_EXECUTORS = 16
MAX_COMPONENTS = 32
MAX_TEXT_LENGTH = 200
# The body of a heartbeat: a host with all of these and its health fits.
MAX_REPORT_BYTES = 2 * 1024 * 1024
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_LENGTH)]
# Larger ones can't be computed with as floating-point numbers.
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class NVLinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of a GPU; `remote` is a GPU's UUID, `switch`, or "" if unknown."""

    link: int
    is_active: bool
    remote: Text = ""


class GPUInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as its driver reports it; unknown values are empty or 0.

    With `has_unified_memory`, `memory_bytes` is the host's memory, which the GPU shares. MIG's
    profiles are known once its mode was on; `is_mig_pending` is the mode after the next reset.
    `pci_device_id` and `pci_subsystem_id` are vendor and device, such as `10de:2330`.
    """

    index: int
    uuid: Text
    model: Text
    memory_bytes: Number
    has_unified_memory: bool = False
    core_count: Number = 0
    architecture: Text = ""
    compute_capability: Text = ""
    memory_bus_bits: int = 0
    sm_clock_max_hertz: Number = 0
    memory_clock_max_hertz: Number = 0
    power_limit_max_watts: float = 0.0
    pci_address: Text = ""
    pci_device_id: Text = ""
    pci_subsystem_id: Text = ""
    pcie_generation: int = 0
    pcie_generation_max: int = 0
    pcie_width: int = 0
    pcie_width_max: int = 0
    serial: Text = ""
    vbios_version: Text = ""
    is_mig_enabled: bool = False
    is_mig_pending: bool = False
    is_mig_capable: bool = False
    mig_profiles: Annotated[list[MIGProfile], msgspec.Meta(max_length=MAX_PROFILES)] = []
    mig_instances: Annotated[list[MIGInstance], msgspec.Meta(max_length=MAX_INSTANCES)] = []
    nvlinks: Annotated[list[NVLinkInfo], msgspec.Meta(max_length=MAX_NVLINKS)] = []


class GPUPath(msgspec.Struct, frozen=True, kw_only=True):
    """How two GPUs are connected, in the terms of `nvidia-smi topo`.

    `kind` is `NV18` (that many NVLinks), `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.
    """

    first_index: int
    second_index: int
    kind: Text


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One whole disk."""

    name: Text
    size_bytes: Number
    model: Text = ""
    is_rotational: bool = False


class NICInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One network card; `speed_bits_per_second` is 0 while its link is down."""

    name: Text
    address: Text = ""
    driver: Text = ""
    speed_bits_per_second: Number = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The inventory; without `executors` the appliance only sends telemetry and runs no jobs.

    `cpu_count` counts hardware threads, `cpu_core_count` cores. `boot_id` changes at each
    boot. `can_probe`: the agent runs `protocol.attempts.ProbeOrder`. `partition_modes`: how it can
    share GPUs, apart from whole ones; none for an agent that knows no slices. `network`: what it
    offers to gangs; `can_stage`: it fetches datasets; `can_keep_results`: it uploads results.
    `cluster`: the one that the agent stands for as a connector. `can_challenge`: it runs
    `protocol.challenges.ChallengeOrder`. `components`: versions of the container engine and its
    parts by name, such as `docker` and `runc`.
    """

    hostname: Text
    os: Text = ""
    kernel: Text = ""
    boot_id: Text = ""
    vendor: Text = ""
    product: Text = ""
    serial: Text = ""
    cpu_model: Text = ""
    cpu_count: int = 1
    cpu_core_count: int = 0
    cpu_socket_count: int = 0
    memory_bytes: Number = 0
    driver_version: Text = ""
    cuda_version: Text = ""
    gpus: Annotated[list[GPUInfo], msgspec.Meta(max_length=MAX_GPUS)] = []
    gpu_paths: Annotated[list[GPUPath], msgspec.Meta(max_length=MAX_GPU_PATHS)] = []
    disks: Annotated[list[DiskInfo], msgspec.Meta(max_length=MAX_DISKS)] = []
    nics: Annotated[list[NICInfo], msgspec.Meta(max_length=MAX_NICS)] = []
    executors: Annotated[list[Text], msgspec.Meta(max_length=MAX_EXECUTORS)] = []
    can_probe: bool = False
    partition_modes: Annotated[list[Text], msgspec.Meta(max_length=MAX_EXECUTORS)] = []
    network: NetworkAbilities = NetworkAbilities()
    can_stage: bool = False
    can_keep_results: bool = False
    cluster: ClusterReport | None = None
    can_challenge: bool = False
    components: Annotated[dict[Text, Text], msgspec.Meta(max_length=MAX_COMPONENTS)] = {}

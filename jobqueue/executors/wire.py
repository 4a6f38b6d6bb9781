"""The agents' protocol, version 1: bodies of `/agent/v1/*`, shared by the agent and the portal."""

import msgspec

from jobqueue.executors.base import AttemptObservation, AttemptSpec
from jobqueue.executors.health import ApplianceHealth

# The most that one transfer of a speed test may move.
MAX_TRANSFER_BYTES = 256 * 1024 * 1024


class NVLinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of a GPU; `remote` is a GPU's UUID, `switch`, or "" where the driver is silent."""

    link: int
    is_active: bool
    remote: str = ""


class GPUInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of an appliance, as its driver names it; what it does not say is empty or 0."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    core_count: int = 0
    architecture: str = ""
    compute_capability: str = ""
    memory_bus_bits: int = 0
    sm_clock_max_hertz: int = 0
    memory_clock_max_hertz: int = 0
    power_limit_max_watts: float = 0.0
    pci_address: str = ""
    pcie_generation: int = 0
    pcie_generation_max: int = 0
    pcie_width: int = 0
    pcie_width_max: int = 0
    serial: str = ""
    vbios_version: str = ""
    is_mig_enabled: bool = False
    nvlinks: list[NVLinkInfo] = []


class GPUPath(msgspec.Struct, frozen=True, kw_only=True):
    """How two GPUs reach each other, in the words of `nvidia-smi topo`.

    `kind` is `NV18` (that many NVLinks), `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.
    """

    first_index: int
    second_index: int
    kind: str


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One disk, whole."""

    name: str
    size_bytes: int
    model: str = ""
    is_rotational: bool = False


class NICInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One network card; `speed_bits_per_second` is 0 while its line is down."""

    name: str
    address: str = ""
    driver: str = ""
    speed_bits_per_second: int = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What an appliance has; without `executors` it takes no jobs and only sends telemetry.

    `cpu_count` counts hardware threads, `cpu_core_count` cores. `boot_id` is another after each
    start of the host.
    """

    hostname: str
    os: str = ""
    kernel: str = ""
    boot_id: str = ""
    vendor: str = ""
    product: str = ""
    serial: str = ""
    cpu_model: str = ""
    cpu_count: int = 1
    cpu_core_count: int = 0
    cpu_socket_count: int = 0
    memory_bytes: int = 0
    driver_version: str = ""
    cuda_version: str = ""
    gpus: list[GPUInfo] = []
    gpu_paths: list[GPUPath] = []
    disks: list[DiskInfo] = []
    nics: list[NICInfo] = []
    executors: list[str] = []


class EnrolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/enroll: trade a one-time token for an identity.

    `csr` is a certificate signing request in PEM form; its key never leaves the appliance.
    """

    token: str
    name: str
    inventory: Inventory
    site: str = ""
    region: str = ""
    labels: dict[str, str] = {}
    csr: str = ""


class IssuedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A client certificate and the authorities that the portal signs them with, in PEM form.

    With `is_enough` the certificate alone proves to this portal who its holder is: the secret need
    not be sent where the certificate is shown. It is good for `lifetime_seconds` from now.
    """

    certificate: str
    authorities: str
    lifetime_seconds: float
    is_enough: bool = False


class RenewalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/certificate: trade the present certificate, or the secret, for a new one."""

    csr: str


class EnrolReply(msgspec.Struct, frozen=True, kw_only=True):
    """The identity: keep `agent_token` secret, it is shown only here."""

    appliance_id: str
    tenant_id: str
    agent_token: str
    certificate: IssuedCertificate | None = None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/heartbeat: alive, with what is here. Sent every 10 s and after a change.

    `instance_id` is made anew by each run of the agent: two that take turns share an identity.
    """

    agent_version: str
    sent_at_ns: int
    inventory: Inventory
    buffered_points: int = 0
    dropped_points: int = 0
    health: ApplianceHealth | None = None
    instance_id: str = ""


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /agent/v1/desired?generation=N&wait_seconds=S: answered at once when N is not current.

    `attempts` should run; `stopping` should end. An attempt in neither list is unknown here: the
    agent stops and removes it.
    """

    generation: int
    attempts: list[AttemptSpec] = []
    stopping: list[str] = []


class ObservedReport(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/observed: sent on every change, and every 10 s."""

    attempts: list[AttemptObservation]


class LogAck(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to POST /agent/v1/attempts/ID/log?offset=N: the next offset that is wanted.

    A chunk at another offset than the stored size is not stored; the agent goes on from
    `next_offset`. `is_full` says that the log reached its limit and no more is taken.
    """

    next_offset: int
    is_full: bool = False


class TransferReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to POST /agent/v1/transfer, which reads bytes and forgets them."""

    received_bytes: int

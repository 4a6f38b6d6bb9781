"""What health is judged by: the newest readings of each GPU and what lasted how long."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collector.health.memory import XIDRecord
from jobqueue.executors.wire import GPUInfo


@dataclass(frozen=True, slots=True)
class ExternalUse:
    """Somebody other than a job uses a GPU: `owner` is `host` or a container's id."""

    owner: str
    memory_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUSigns:
    """One GPU.

    Attributes:
        reading: the newest values of measurement `gpu`, by field.
        is_missing: it was here and the inventory does not name it any more.
        had_nvlinks: one of its NVLinks was up at some time.
        heat_seconds: time of the last ten minutes in which heat held its clocks down.
        hardware_seconds: likewise, for the board's own protection.
        corrected_errors: memory errors that were corrected in the last hour.
        slow_pcie_seconds: time under load with a slower PCIe generation than it can.
        load_clock_hertz: its usual clock under full load in the last hour; None when not loaded.
        xids: what the driver reported since the boot.
    """

    index: int
    uuid: str
    model: str = ""
    info: GPUInfo | None = None
    reading: Mapping[str, float] = field(default_factory=dict)
    is_missing: bool = False
    had_nvlinks: bool = False
    heat_seconds: float = 0.0
    hardware_seconds: float = 0.0
    corrected_errors: float = 0.0
    slow_pcie_seconds: float = 0.0
    load_clock_hertz: float | None = None
    external: ExternalUse | None = None
    xids: tuple[XIDRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """An appliance.

    Attributes:
        disk_used_percent: by mount.
        silent_seconds: how long no GPU was read, where GPUs should be; None where all is well.
    """

    gpus: tuple[GPUSigns, ...] = ()
    disk_used_percent: Mapping[str, float] = field(default_factory=dict)
    silent_seconds: float | None = None

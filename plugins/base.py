"""What a read plugin is: a frozen config, declared metrics, and `gather(now)` that gives points.

A *metric* is one field of one measurement. Measurements, fields, tags and units are those of
docs/metrics.md; the unit is the field's suffix.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from jobqueue.executors.wire import Inventory
from plugins.simulation.appliance import SimulatedAppliance
from timeseries.points import FieldValue, Point

# By index of the GPU: its tags `uuid` and `model`.
GPUTags = Mapping[str, Mapping[str, str]]
# Begins what stands in for the UUID of a GPU that is known by its PCI address alone.
ADDRESS_PREFIX = "PCI-"


class PluginError(Exception):
    """A reading failed; the host shows it and tries again, ever less often."""


class PluginUnavailableError(PluginError):
    """What the plugin reads is not on this appliance; the host skips it quietly."""


class PluginRestartError(PluginError):
    """The reading can only work in a new process; the child ends once it has told this error.

    So it is after an update of a driver, whose old library stays loaded in this process.
    """


class MetricKind(StrEnum):
    """How values of a metric may be combined."""

    GAUGE = "gauge"
    RATE = "rate"
    FLAG = "flag"
    COUNTER = "counter"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Metric:
    """One field that a plugin can give."""

    name: str
    kind: MetricKind
    unit: str
    description: str


class Transfer(Protocol):
    """Moves bytes between this appliance and the access point in use, to time the line."""

    def download(self, size_bytes: int) -> None:
        """Fetch so many bytes and forget them.

        Raises:
            PluginError: the access point did not send them.
        """

    def upload(self, size_bytes: int) -> None:
        """Send so many bytes, which the access point forgets.

        Raises:
            PluginError: the access point did not take them.
        """

    def close(self) -> None:
        """Let the connection go; the next transfer opens another."""


def _no_holders() -> Mapping[str, str]:
    return {}


def _no_gpus() -> GPUTags:
    return {}


def _keep_private(inventory: Inventory) -> None:
    del inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """What plugins may share with the agent that reads them.

    Attributes:
        simulation: the simulated appliance, where this one is simulated.
        proc: the kernel's process files; a test puts a capture in their place.
        sys: the kernel's device files, likewise.
        docker_url: where this host's Docker engine listens.
        job_of_gpu: gives GPU UUID to the id of the job that holds it.
        known_gpus: gives the tags of the GPUs that this appliance had; a lost one may be unable to
            say them.
        job_of_container: gives container id (64 hex digits) to the id of the job that it runs.
        transfer: the line to the portal; None where there is none to time.
        publish_inventory: takes what the inventory plugin found, for the heartbeat.
    """

    simulation: SimulatedAppliance | None = None
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    docker_url: str = "unix:///var/run/docker.sock"
    job_of_gpu: Callable[[], Mapping[str, str]] = _no_holders
    known_gpus: Callable[[], GPUTags] = _no_gpus
    job_of_container: Callable[[], Mapping[str, str]] = _no_holders
    transfer: Transfer | None = None
    publish_inventory: Callable[[Inventory], None] = _keep_private


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTraits:
    """How the host treats a plugin when the configuration does not say.

    Attributes:
        interval_seconds: how often it is read; None for the agent's interval.
        time_limit_seconds: a reading that takes longer is given up.
        is_simulated: on by default on simulated appliances, off on all others.
        child: plugins with the same name here are read in one child process, which is killed when
            a reading passes its limit; "" reads in the agent itself. A class with `needs_child`
            (see `ChoosesChild`) says whether the child is worth its cost on this host.
        own_thread: it waits for a network or another program, so it is read in a thread of its own
            and delays no other plugin.
    """

    interval_seconds: float | None = None
    time_limit_seconds: float = 10.0
    is_simulated: bool = False
    child: str = ""
    own_thread: bool = False


class Plugin(Protocol):
    """Reads one kind of vital sign.

    Attributes:
        config_class: a frozen dataclass; its fields are the keys of `[plugins.NAME]`.
    """

    name: ClassVar[str]
    config_class: ClassVar[type]
    traits: ClassVar[PluginTraits]
    metrics: ClassVar[Sequence[Metric]]

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the readings of this instant.

        Raises:
            PluginUnavailableError: there is nothing to read here.
            PluginError: the reading failed.
        """

    def close(self) -> None:
        """Release what gathering opened."""


@runtime_checkable
class ChoosesChild(Protocol):
    """What a plugin class with `traits.child`, or its config, may add: whether it needs the child.

    A child costs a process and some memory, so a host without the driver that could hang starts
    none: there the plugin is read in the agent itself. So does one without settings that want it.
    """

    def needs_child(self, context: PluginContext) -> bool:
        """Return whether the child is needed on this host now; of a plugin it is a classmethod.

        It is asked in the agent before each reading while no child runs, so it must cost next to
        nothing (look for a file, load a library), can't hang, and raises nothing.
        """


class PluginClass(Protocol):
    """The class behind an entry point: declares like a plugin and builds one."""

    name: str
    config_class: type
    traits: PluginTraits
    metrics: Sequence[Metric]

    def __call__(self, config: object, context: PluginContext) -> Plugin:
        """Return the plugin for a checked config."""


def gauges(fields: Mapping[str, tuple[str, str]]) -> tuple[Metric, ...]:
    """Return gauge metrics from `name -> (unit, description)`."""
    return tuple(
        Metric(name, MetricKind.GAUGE, unit, description)
        for name, (unit, description) in fields.items()
    )


def rates(fields: Mapping[str, tuple[str, str]]) -> tuple[Metric, ...]:
    """Return per-second metrics from `name -> (unit, description)`."""
    return tuple(
        Metric(name, MetricKind.RATE, unit, description)
        for name, (unit, description) in fields.items()
    )


def counters(fields: Mapping[str, tuple[str, str]]) -> tuple[Metric, ...]:
    """Return metrics that only grow, until a reset, from `name -> (unit, description)`."""
    return tuple(
        Metric(name, MetricKind.COUNTER, unit, description)
        for name, (unit, description) in fields.items()
    )


def flags(fields: Mapping[str, str]) -> tuple[Metric, ...]:
    """Return metrics that are 0 or 1, from `name -> description`."""
    return tuple(
        Metric(name, MetricKind.FLAG, "0 or 1", description) for name, description in fields.items()
    )


def present(fields: Mapping[str, FieldValue | None]) -> dict[str, FieldValue]:
    """Return the fields that have a value: a reading that is not supported is absent, never 0."""
    return {name: value for name, value in fields.items() if value is not None}


def matches_any(value: str, patterns: Iterable[str]) -> bool:
    """Return whether a shell pattern such as `loop*` fits."""
    return any(fnmatchcase(value, pattern) for pattern in patterns)

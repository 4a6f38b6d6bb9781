"""The plugin interface: a frozen config, declared metrics, and `gather(now)`, which returns points.

A *metric* is one field of one measurement. Measurements, fields, tags and units are those of
docs/metrics.md; the unit is the field's suffix.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from plugins.simulation.appliance import SimulatedAppliance
from protocol.gpu_processes import GPUProcess
from protocol.inventory import Inventory
from timeseries.points import FieldValue, Point

# By index of the GPU: its tags `uuid` and `model`.
GPUTags = Mapping[str, Mapping[str, str]]
# Begins what stands in for the UUID of a GPU that is known by its PCI address alone.
ADDRESS_PREFIX = "PCI-"


class PluginError(Exception):
    """A reading failed. The plugin host reports it and retries with backoff."""


class PluginUnavailableError(PluginError):
    """The appliance has nothing for this plugin to read. The plugin host skips it silently."""


class PluginRestartError(PluginError):
    """Only a new process can read this. The worker process exits after reporting the error.

    This happens after a driver update: the old library stays loaded in this process.
    """


class MetricKind(StrEnum):
    """The kind of a metric: it says how values may be combined."""

    GAUGE = "gauge"
    RATE = "rate"
    FLAG = "flag"
    COUNTER = "counter"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Metric:
    """One field that a plugin can return."""

    name: str
    kind: MetricKind
    unit: str
    description: str


class Transfer(Protocol):
    """Transfers bytes between this appliance and its access point, to measure the speed."""

    def download(self, size_bytes: int) -> None:
        """Download and discard this many bytes.

        Raises:
            PluginError: the access point did not send them.
        """

    def upload(self, size_bytes: int) -> None:
        """Upload this many bytes, which the access point discards.

        Raises:
            PluginError: the access point did not accept them.
        """

    def close(self) -> None:
        """Close the connection; the next transfer opens another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """The services of the agent for plugins.

    Attributes:
        simulation: the simulated appliance, if this one is simulated.
        proc: where `/proc` is; tests use a capture.
        sys: where `/sys` is; tests use a capture.
        docker_url: where this host's Docker engine listens.
        job_of_gpu: returns the job ID of each allocated GPU UUID.
        known_gpus: returns the last known tags of the GPUs, since a lost GPU may not report them.
        job_of_container: returns the job ID of each container ID (64 hex digits).
        transfer: the connection to the portal; None if there is none to measure.
        publish_inventory: receives the inventory, for the heartbeat.
        publish_gpu_processes: receives the processes on all GPUs, for the heartbeat.
        publish_amd_processes: receives those on AMD's, which are read apart.
    """

    simulation: SimulatedAppliance | None = None
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    docker_url: str = "unix:///var/run/docker.sock"
    job_of_gpu: Callable[[], Mapping[str, str]] = dict
    known_gpus: Callable[[], GPUTags] = dict
    job_of_container: Callable[[], Mapping[str, str]] = dict
    transfer: Transfer | None = None
    publish_inventory: Callable[[Inventory], object] = lambda _: None
    publish_gpu_processes: Callable[[list[GPUProcess]], object] = lambda _: None
    publish_amd_processes: Callable[[list[GPUProcess]], object] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTraits:
    """Defaults of a plugin, unless the configuration overrides them.

    Attributes:
        interval_seconds: how often it is read; None for the agent's interval.
        time_limit_seconds: a reading that takes longer is abandoned.
        is_simulated: on by default on simulated appliances, off on all others.
        worker: plugins with the same name here are read in one worker process, which is killed
            when a reading passes its limit; "" reads in the agent itself. A class with
            `needs_worker` (see `NeedsWorker`) says whether the worker is worth its cost here.
        own_thread: it waits for a network or another program, so it is read in its own thread and
            does not delay other plugins.
        intervals_to_rates: it passes on counters of other programs, whose rates it has after so
            many intervals; 0 if a second reading is enough at any time.
    """

    interval_seconds: float | None = None
    time_limit_seconds: float = 10.0
    is_simulated: bool = False
    worker: str = ""
    own_thread: bool = False
    intervals_to_rates: int = 0


class Plugin(Protocol):
    """Reads one kind of metric.

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
            PluginUnavailableError: nothing to read on this appliance.
            PluginError: the reading failed.
        """

    def close(self) -> None:
        """Release what gathering opened."""


@dataclass(frozen=True, slots=True)
class NoSettings:
    """Config of a plugin without settings."""


class BasePlugin:
    """Defaults of a plugin: no settings, standard traits, nothing to close."""

    name: ClassVar[str]
    config_class: ClassVar[type] = NoSettings
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[Sequence[Metric]]

    def last_points(self, now: datetime) -> Iterable[Point]:
        """Return what was collected since the last reading; called once, before `close`."""
        del now
        return ()

    def close(self) -> None:
        """Release nothing."""


@runtime_checkable
class NeedsWorker(Protocol):
    """Optional method of a plugin class with `traits.worker`, or of its config.

    A worker process costs memory. Without a driver that could hang, or without settings that need
    it, the plugin is read in the agent itself.
    """

    def needs_worker(self, context: PluginContext) -> bool:
        """Return whether the worker process is needed. A plugin has it as a classmethod.

        The agent calls it before each reading while no worker runs: it must be cheap (look for a
        file, load a library), must not hang, and must not raise.
        """


class PluginClass(Protocol):
    """The class behind an entry point: declares like a plugin and builds one."""

    name: str
    config_class: type
    traits: PluginTraits
    metrics: Sequence[Metric]

    def __call__(self, config: object, context: PluginContext) -> Plugin:
        """Return the plugin for a checked config."""


def _metrics(kind: MetricKind, /, **fields: tuple[str, str]) -> tuple[Metric, ...]:
    """Return metrics from `name=(unit, description)`."""
    return tuple(Metric(name, kind, *declared) for name, declared in fields.items())


gauges = partial(_metrics, MetricKind.GAUGE)
rates = partial(_metrics, MetricKind.RATE)
counters = partial(_metrics, MetricKind.COUNTER)


def flags(**fields: str) -> tuple[Metric, ...]:
    """Return flag metrics (0 or 1) from `name=description`."""
    return tuple(
        Metric(name, MetricKind.FLAG, "0 or 1", description) for name, description in fields.items()
    )


def present(fields: Mapping[str, FieldValue | None]) -> dict[str, FieldValue]:
    """Return the fields that have a value: a reading that is not supported is absent, never 0."""
    return {name: value for name, value in fields.items() if value is not None}


def matches_any(value: str, patterns: Iterable[str]) -> bool:
    """Return whether any shell pattern, such as `loop*`, matches."""
    return any(fnmatchcase(value, pattern) for pattern in patterns)

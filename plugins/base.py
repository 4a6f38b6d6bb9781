"""What a read plugin is: a frozen config, declared metrics, and `gather(now)` that gives points.

A *metric* is one field of one measurement. Measurements, fields, tags and units are those of
docs/metrics.md; the unit is the field's suffix.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import ClassVar, Protocol

from plugins.simulation.appliance import SimulatedAppliance
from timeseries.points import FieldValue, Point


class PluginError(Exception):
    """A reading failed; the host shows it and tries again, ever less often."""


class PluginUnavailableError(PluginError):
    """What the plugin reads is not on this appliance; the host skips it quietly."""


class MetricKind(StrEnum):
    """How values of a metric may be combined."""

    GAUGE = "gauge"
    RATE = "rate"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Metric:
    """One field that a plugin can give."""

    name: str
    kind: MetricKind
    unit: str
    description: str


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What plugins may share: the simulated appliance, where this one is simulated."""

    simulation: SimulatedAppliance | None = None


class Plugin(Protocol):
    """Reads one kind of vital sign.

    Attributes:
        config_class: a frozen dataclass; its fields are the keys of `[plugins.NAME]`.
        is_simulated: on by default on simulated appliances, off on all others.
    """

    name: ClassVar[str]
    config_class: ClassVar[type]
    is_simulated: ClassVar[bool]
    metrics: ClassVar[Sequence[Metric]]

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the readings of this instant.

        Raises:
            PluginUnavailableError: there is nothing to read here.
            PluginError: the reading failed.
        """

    def close(self) -> None:
        """Release what gathering opened."""


class PluginClass(Protocol):
    """The class behind an entry point: declares like a plugin and builds one."""

    name: str
    config_class: type
    is_simulated: bool
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


def present(fields: Mapping[str, FieldValue | None]) -> dict[str, FieldValue]:
    """Return the fields that have a value: a reading that is not supported is absent, never 0."""
    return {name: value for name, value in fields.items() if value is not None}


def matches_any(value: str, patterns: Iterable[str]) -> bool:
    """Return whether a shell pattern such as `loop*` fits."""
    return any(fnmatchcase(value, pattern) for pattern in patterns)

"""The map of other programs' metrics to ours: `metric_map.toml`, which explains its words.

Ingest reads it forward, so that dashboards and rules work for hosts without an agent; the import of
Prometheus rules reads it too.
"""

import re
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

Labels = Mapping[str, str]
Sender = Literal[
    "node_exporter",
    "dcgm-exporter",
    "amd-device-metrics-exporter",
    "telegraf",
    "collectd",
    "hostmetrics",
]


class Use(StrEnum):
    """How a value of the source becomes ours, before it is scaled."""

    VALUE = "value"
    RATE = "rate"
    AGE = "age"


class Combine(StrEnum):
    """How several series of the source with the same tags become one."""

    LAST = "last"
    SUM = "sum"
    AVG = "avg"
    MAX = "max"


class MetricMapping(msgspec.Struct, frozen=True, kw_only=True):
    """How a metric of another program becomes one of ours.

    Attributes:
        source: its name; of Telegraf and collectd, `measurement.field`.
        measurement: ours.
        field: ours; one that is not declared only serves to derive others.
        scale: what the value, rate or age is multiplied by.
        tags: label of the source to our tag; other labels are left out.
        where: labels that a series must have.
        skip: labels that it must not have, with a pattern of the whole value.
    """

    sender: Sender
    source: str
    measurement: str
    field: str
    use: Use
    scale: float
    combine: Combine
    tags: Labels
    where: Labels
    skip: Mapping[str, re.Pattern[str]]

    @property
    def metric(self) -> str:
        """Our metric, as rules name it."""
        return f"{self.measurement}.{self.field}"

    def fits(self, labels: Labels) -> bool:
        """Return whether it maps the series with these labels."""
        return all(labels.get(name) == value for name, value in self.where.items()) and not any(
            pattern.fullmatch(labels.get(name, "")) for name, pattern in self.skip.items()
        )

    def our_tags(self, labels: Labels) -> dict[str, str]:
        """Return the tags of the series with these labels."""
        return {tag: labels[name] for name, tag in self.tags.items() if labels.get(name)}


class Derived(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field that follows from others of the same tags: a sum, or a part of it in percent."""

    to: str
    constant: float = 0.0
    plus: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    percent: str = ""

    @property
    def field(self) -> str:
        """The field without its measurement."""
        return self.to.partition(".")[2]

    def value(self, fields: Mapping[str, float]) -> float | None:
        """Return the value; None if a field is missing or nothing is the whole."""
        needed = [*self.plus, *self.minus, *([self.percent] if self.percent else [])]
        if any(name not in fields for name in needed):
            return None
        total = self.constant + sum(fields[name] for name in self.plus)
        total += sum(fields.get(name, 0.0) for name in self.optional)
        total -= sum(fields[name] for name in self.minus)
        if not self.percent:
            return max(0.0, total)
        return min(100.0, max(0.0, 100 * fields[self.percent] / total)) if total > 0 else None


class _Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str = msgspec.field(name="from")
    to: str
    use: Use = msgspec.field(name="as", default=Use.VALUE)
    scale: float = 1.0
    where: dict[str, str] = {}


class _Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sender: Sender
    metrics: list[_Metric]
    tags: dict[str, str] = {}
    where: dict[str, str] = {}
    skip: dict[str, str] = {}
    combine: Combine = Combine.LAST


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: list[_Group]
    derived: list[Derived]


@cache
def all_mappings() -> tuple[MetricMapping, ...]:
    """Return the whole map, in the order of the file."""
    return tuple(_mapping(group, metric) for group in _file().group for metric in group.metrics)


@cache
def mappings_by_source() -> Mapping[str, tuple[MetricMapping, ...]]:
    """Return the mappings of each metric of other programs; one may become several of ours."""
    by_source: dict[str, tuple[MetricMapping, ...]] = {}
    for mapping in all_mappings():
        by_source[mapping.source] = (*by_source.get(mapping.source, ()), mapping)
    return by_source


def mapping_of(source: str, labels: Labels) -> MetricMapping | None:
    """Return the first mapping of a metric whose series have these labels, None without any.

    For the import of rules: the labels are those that a selector requires by equality.
    """
    mappings = mappings_by_source().get(source, ())
    return next((mapping for mapping in mappings if mapping.fits(labels)), None)


def all_derived() -> list[Derived]:
    """Return what follows from other fields, in the order of the file."""
    return _file().derived


@cache
def derived_of(measurement: str) -> tuple[Derived, ...]:
    """Return what follows from the fields of our measurement, in the order to derive it."""
    return tuple(item for item in all_derived() if item.to.startswith(f"{measurement}."))


@cache
def _file() -> _File:
    text = resources.files("timeseries").joinpath("metric_map.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _File)


def _mapping(group: _Group, metric: _Metric) -> MetricMapping:
    measurement, _, field = metric.to.partition(".")
    return MetricMapping(
        sender=group.sender,
        source=metric.source,
        measurement=measurement,
        field=field,
        use=metric.use,
        scale=metric.scale,
        combine=group.combine,
        tags=group.tags,
        where={**group.where, **metric.where},
        skip={name: re.compile(pattern) for name, pattern in group.skip.items()},
    )

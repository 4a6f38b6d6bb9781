"""Our metrics from those of other programs, by `timeseries.metric_map`.

A rate needs the sample before, and a derived field or a sum over series needs values that may come
in other posts: what was seen last of each host is remembered for a few minutes. Samples that are
older than that give no rate. Several processes each see a part of the posts, which only makes their
rates ones over longer spans.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean

from core.clock import NS_PER_SECOND
from timeseries.declared import DECLARED
from timeseries.metric_map import (
    Combine,
    MetricMapping,
    Use,
    derived_of,
    mappings_by_source,
)
from timeseries.points import Block, Point

REMEMBERED_FOR_NS = 10 * 60 * NS_PER_SECOND
# Of a sum over series: those that came within this time of the newest one.
TOGETHER_NS = 150 * NS_PER_SECOND
MAX_SERIES_OF_HOST = 50_000
MAX_HOSTS = 10_000
_COMBINED: Mapping[Combine, Callable[[list[float]], float]] = {
    Combine.SUM: sum,
    Combine.AVG: fmean,
    Combine.MAX: max,
}

Target = tuple[str, tuple[tuple[str, str], ...]]
"""One of our measurements with its tags."""
Source = tuple[int, tuple[str, ...]]
"""A mapping and the tag values of a series."""


@dataclass(slots=True)
class _HostState:
    """What was seen of a host.

    Attributes:
        counters: the last time and value of each series whose rate is ours.
        parts: the last time and value of each series that makes up a field.
        fields: the last time and value of our fields.
    """

    counters: dict[Source, tuple[int, float]] = field(default_factory=dict)
    parts: dict[tuple[Target, str], dict[Source, tuple[int, float]]] = field(default_factory=dict)
    fields: dict[Target, dict[str, tuple[int, float]]] = field(default_factory=dict)


class Readings:
    """Makes our readings of other programs' samples. Not thread-safe."""

    def __init__(self) -> None:
        self._hosts: dict[str, _HostState] = {}

    def of_blocks(self, appliance_id: str, blocks: Iterable[Block]) -> list[Point]:
        """Return our points of a host's samples; positions of the blocks don't matter."""
        state = self._hosts.pop(appliance_id, None) or _HostState()
        # The hosts that send are the last ones.
        self._hosts[appliance_id] = state
        if len(self._hosts) > MAX_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        if len(state.counters) + len(state.fields) > MAX_SERIES_OF_HOST:
            self._hosts[appliance_id] = state = _HostState()
        fresh: dict[tuple[int, Target], dict[str, float]] = {}
        for block in blocks:
            for time_ns, target, name, value in _values(state, block):
                fresh.setdefault((time_ns, target), {})[name] = value
        return [
            point
            for (time_ns, target), fields in sorted(fresh.items())
            if (point := _point(state, target, fields, time_ns=time_ns)) is not None
        ]


def has_mapping(measurement: str) -> bool:
    """Return whether some of a measurement's samples become ours."""
    return measurement in _measurements()


def _values(state: _HostState, block: Block) -> Iterator[tuple[int, Target, str, float]]:
    """Yield time, target, field and value of each sample of a block that is mapped."""
    for column, name in enumerate(block.fields):
        if block.kinds[column] is str:
            continue
        source = block.measurement if name == "value" else f"{block.measurement}.{name}"
        for mapping in mappings_by_source().get(source, ()):
            targets = [_target(mapping, block.tags, values) for values in block.tag_sets]
            for row, at in enumerate(block.tag_set_of):
                target = targets[at]
                if target is None:
                    continue
                time_ns, given = block.times_ns[row], float(block.values[column][row])
                series = id(mapping), block.tag_sets[at]
                reading = _reading(state, mapping, series, time_ns=time_ns, value=given)
                if reading is None:
                    continue
                key = target, mapping.field
                if mapping.combine is not Combine.LAST:
                    reading = _combined(state, mapping, key, series, (time_ns, reading))
                yield time_ns, target, mapping.field, reading


def _target(mapping: MetricMapping, tags: Sequence[str], values: Sequence[str]) -> Target | None:
    labels = dict(zip(tags, values, strict=True))
    if not mapping.fits(labels):
        return None
    return mapping.measurement, tuple(sorted(mapping.our_tags(labels).items()))


def _reading(
    state: _HostState, mapping: MetricMapping, series: Source, *, time_ns: int, value: float
) -> float | None:
    """Return a value in our unit; None if it needs a sample before."""
    if mapping.use is Use.VALUE:
        return value * mapping.scale
    if mapping.use is Use.AGE:
        return (time_ns / NS_PER_SECOND - value) * mapping.scale
    before = state.counters.get(series)
    if before is not None and time_ns <= before[0]:
        return None
    state.counters[series] = (time_ns, value)
    if before is None or time_ns - before[0] > REMEMBERED_FOR_NS:
        return None
    # A counter that went back began at 0.
    increase = value - before[1] if value >= before[1] else value
    return increase * mapping.scale * NS_PER_SECOND / (time_ns - before[0])


def _combined(
    state: _HostState,
    mapping: MetricMapping,
    key: tuple[Target, str],
    series: Source,
    sample: tuple[int, float],
) -> float:
    parts = state.parts.setdefault(key, {})
    parts[series] = sample
    values = [value for at, value in parts.values() if abs(at - sample[0]) <= TOGETHER_NS]
    return _COMBINED[mapping.combine](values)


def _point(
    state: _HostState, target: Target, fields: Mapping[str, float], *, time_ns: int
) -> Point | None:
    """Return a point with its derived fields; None if nothing of it is a metric of ours."""
    measurement, tags = target
    seen = state.fields.setdefault(target, {})
    for name, value in fields.items():
        seen[name] = (time_ns, value)
    usable = {
        name: value
        for name, (at, value) in seen.items()
        if abs(time_ns - at) <= REMEMBERED_FOR_NS and name not in fields
    }
    usable |= fields
    ours = dict(fields)
    for derived in derived_of(measurement):
        inputs = {*derived.plus, *derived.minus, derived.percent}
        if derived.field in seen or inputs.isdisjoint(ours):
            continue
        result = derived.value(usable)
        if result is not None:
            ours[derived.field] = usable[derived.field] = result
    plausible = dict(_plausible(measurement, ours))
    return Point(measurement, dict(tags), plausible, time_ns) if plausible else None


def _plausible(measurement: str, fields: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield declared fields with a value that a device or a host can have."""
    ranges = DECLARED[measurement].ranges
    for name, value in fields.items():
        limits = ranges.get(name)
        if limits is None:
            continue
        if name.endswith("_percent"):
            # A share of time by counters that were not read at one instant.
            yield name, min(max(value, limits.least), limits.greatest)
        elif limits.least <= value <= limits.greatest:
            yield name, value


@cache
def _measurements() -> frozenset[str]:
    return frozenset(source.partition(".")[0] for source in mappings_by_source())

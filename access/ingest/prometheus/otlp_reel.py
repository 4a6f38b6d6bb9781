"""Messages of OTLP's metrics in the order in which a sender sent them.

A sender goes through its metrics in the same order every time, and their messages have the same
sizes: of gauges and sums only times and values differ. So a metric that follows as it did the last
time is not parsed but compared, together with all that follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from access.ingest.prometheus.reel import MAX_BYTES, Places, first_difference

HEAD = Struct("<BqBqB8s")
"""Both times and a value, each with its key: the data point of a gauge or sum begins with it."""
HEADS = np.dtype(
    [
        ("start_key", "u1"),
        ("start_ns", "<i8"),
        ("time_key", "u1"),
        ("time_ns", "<i8"),
        ("value_key", "u1"),
        ("value", "<f8"),
    ]
)
_VARIABLE = np.array([at for at in range(HEAD.size) if at not in {0, 9, 18}])
"""Where in a head times and value are."""
INTEGER_KEY = 0x31
_LEAST_METRICS = 8
Place = tuple[object, str]
"""The labels of a resource, and the name of the metric before; "" at the beginning of a scope."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The message of a metric of which every data point is usual.

    Attributes:
        labels: those of its resource.
        name: of the metric.
        after: the name of the metric before in its scope; "" if it is the first.
        octets: its field.
        heads: where each data point begins.
        numbers: the series of each.
    """

    labels: object
    name: str
    after: str
    octets: bytes
    heads: Places
    numbers: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Followed:
    """Metrics that follow as before.

    Attributes:
        end: where they end.
        values: the value of each data point.
        times_ns: the times.
        numbers: the series.
        metrics: how many they are.
        name: of the last one.
    """

    end: int
    values: NDArray[np.float64]
    times_ns: NDArray[np.int64]
    numbers: NDArray[np.int32]
    metrics: int
    name: str


@dataclass(frozen=True, slots=True)
class MetricReel:
    """Metrics of usual data points, one behind the other. Never changed in place.

    Attributes:
        octets: the messages, each with its key and size.
        is_fixed: which of their bytes are neither of a value nor of a time.
        ends: where each metric ends.
        scope_ends: at which metric the scope of each one ends.
        first_points: the number of each metric's first data point, and that of all.
        heads: where each data point begins.
        numbers: the series of each.
        names: the name of each metric.
        next_of: the metric at a place.
    """

    octets: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    is_fixed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    ends: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    scope_ends: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first_points: Places = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    heads: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    numbers: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    names: Sequence[str] = ()
    next_of: Mapping[Place, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.octets)

    def follow(self, scope: NDArray[np.uint8], at: int, place: Place) -> Followed | None:
        """Return the metrics from a position of a scope's message on that are as before.

        Args:
            scope: what is read.
            at: where the next metric's field begins.
            place: which one that is; one of `next_of`.
        """
        first = self.next_of[place]
        start = int(self.ends[first - 1]) if first else 0
        stop_metric = int(self.scope_ends[first])
        end = int(self.ends[stop_metric - 1])
        stop = first_difference(scope, at, self.octets[:end], start, self.is_fixed)
        last = first + int(np.searchsorted(self.ends[first:stop_metric], stop, side="right"))
        if last == first:
            return None
        points = slice(int(self.first_points[first]), int(self.first_points[last]))
        shift = at - start
        windows = np.ndarray(len(scope) - HEAD.size + 1, dtype=HEADS, buffer=scope, strides=(1,))
        heads = windows[self.heads[points] + shift]
        values = heads["value"].astype(np.float64)
        is_integer = heads["value_key"] == INTEGER_KEY
        if is_integer.any():
            integers = np.ascontiguousarray(heads["value"]).view("<i8")
            values[is_integer] = integers[is_integer]
        end_of_last = int(self.ends[last - 1]) + shift
        return Followed(
            end_of_last,
            values,
            heads["time_ns"].astype(np.int64),
            self.numbers[points],
            last - first,
            self.names[last - 1],
        )

    def extended(self, units: Sequence[Unit]) -> "MetricReel":
        """Return a reel with more metrics, in the order of a request."""
        size = sum(len(unit.octets) for unit in units)
        if len(units) < _LEAST_METRICS or size > MAX_BYTES:
            return self
        former = self if len(self) + size <= MAX_BYTES else MetricReel()
        lengths = [len(unit.octets) for unit in units]
        ends = np.cumsum([len(former), *lengths])
        heads = np.concatenate(
            [unit.heads + start for unit, start in zip(units, ends.tolist(), strict=False)]
        )
        is_fixed = np.ones(size, dtype=np.bool_)
        is_fixed[(heads - len(former))[:, None] + _VARIABLE] = False
        counts = np.cumsum([len(former.heads), *(len(unit.heads) for unit in units)])
        metrics = len(former.ends)
        places = {(unit.labels, unit.after): at for at, unit in enumerate(units, metrics)}
        joined = np.frombuffer(b"".join([unit.octets for unit in units]), dtype=np.uint8)
        return MetricReel(
            np.concatenate([former.octets, joined]),
            np.concatenate([former.is_fixed, is_fixed]),
            np.concatenate([former.ends, ends[1:]]),
            np.concatenate([former.scope_ends, _scope_ends(units) + metrics]),
            np.concatenate([former.first_points, counts[1:]]),
            np.concatenate([former.heads, heads]),
            np.concatenate([former.numbers, *(unit.numbers for unit in units)]),
            [*former.names, *(unit.name for unit in units)],
            {**former.next_of, **places},
        )


def _scope_ends(units: Sequence[Unit]) -> Places:
    """Return for each metric where those of another scope begin."""
    begins = [
        at
        for at, unit in enumerate(units)
        if not at or not unit.after or unit.labels != units[at - 1].labels
    ]
    ends = [*begins[1:], len(units)]
    return np.repeat(ends, np.diff([*begins, len(units)]))

"""Metrics of training as points: what a job prints, and what its event files have.

A job's names, values and rate are not trusted: a name is printable and short, a job has a limited
number of them, and points above a rate are left out.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from protocol.logs import log_lines
from protocol.results import MAX_METRIC_NAME_LENGTH, MEASUREMENT
from timeseries.points import Point

log = logging.getLogger(__name__)

MAX_NAMES = 200
"""Of a job's metrics."""
POINTS_PER_SECOND, BURST = 50.0, 5000.0
MAX_STEP = 2**53
MAX_VALUE = 1e300
MAX_LINE_BYTES = 16 * 1024
_MARK = b'{"vedette"'
_SPACED_MARK = b'{ "vedette"'


class _Printed(msgspec.Struct):
    vedette: dict[str, object]


class MetricSource:
    """Makes the points of one attempt, within its limits. For one thread."""

    def __init__(
        self, job_id: str, attempt_id: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tags = {"job": job_id, "attempt": attempt_id}
        self._monotonic = monotonic
        self._names: set[str] = set()
        self._tokens, self._filled_at = BURST, monotonic()
        self._has_warned = False

    def point(self, name: str, value: object, step: object, time_ns: int) -> Point | None:
        """Return the point of a metric; None if it is no number, or above a limit."""
        number = _finite(value)
        name = name.strip()
        if number is None or not name.isprintable() or not 0 < len(name) <= MAX_METRIC_NAME_LENGTH:
            return None
        if name not in self._names and len(self._names) >= MAX_NAMES:
            self._warn(f"more than {MAX_NAMES} metrics")
            return None
        if not self._has_token():
            self._warn(f"more than {POINTS_PER_SECOND:g} points a second")
            return None
        self._names.add(name)
        fields: dict[str, float | int] = {"value": number}
        at_step = _finite(step)
        if at_step is not None and abs(at_step) <= MAX_STEP:
            fields["step"] = at_step
        return Point(MEASUREMENT, {**self._tags, "name": name}, fields, time_ns)

    def _has_token(self) -> bool:
        now = self._monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * POINTS_PER_SECOND)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            log.warning("job %s has %s; further ones are left out", self._tags["job"], reason)
            self._has_warned = True


class PrintedMetrics:
    """Finds metrics in the output of attempts: lines `{"vedette": {"step": 10, "loss": 0.3}}`.

    Output that is read again makes the same points again. For one thread.
    """

    def __init__(self, add_points: Callable[[list[Point]], object]) -> None:
        self._add_points = add_points
        self._sources: dict[str, MetricSource] = {}

    def read(self, attempt_id: str, job_id: str, records: bytes) -> None:
        """Add the metrics in new records of an attempt's log."""
        if _MARK not in records and _SPACED_MARK not in records:
            return
        source = self._sources.setdefault(attempt_id, MetricSource(job_id, attempt_id))
        points: list[Point] = []
        for line in log_lines(records):
            text = line.text.strip()
            if text.startswith("{") and '"vedette"' in text[:20] and not line.is_open and line.at:
                points += printed_points(source, text, _time_ns(line.at))
        if points:
            self._add_points(points)

    def forget(self, attempt_id: str) -> None:
        """Forget an attempt that was removed."""
        self._sources.pop(attempt_id, None)


def printed_points(source: MetricSource, text: str, time_ns: int) -> list[Point]:
    """Return the points of a line that a job printed; none if it is something else."""
    if len(text) > MAX_LINE_BYTES:
        return []
    try:
        values: Mapping[str, object] = msgspec.json.decode(
            _without_nan(text), type=_Printed
        ).vedette
    except (msgspec.MsgspecError, ValueError):
        return []
    step = values.get("step")
    points = [
        source.point(name, value, step, time_ns) for name, value in values.items() if name != "step"
    ]
    return [point for point in points if point is not None]


def _without_nan(text: str) -> str:
    """Return JSON in which values that Python's `json` writes beside the standard are null."""
    for word in ("-Infinity", "Infinity", "NaN"):
        if word in text:
            text = text.replace(f": {word}", ": null").replace(f":{word}", ":null")
    return text


def _finite(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) and abs(value) < MAX_VALUE else None
    except OverflowError:
        return None


def _time_ns(text: str) -> int:
    """Return an RFC 3339 time in UTC, which may have nanoseconds."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    at = datetime.fromisoformat(f"{seconds}+00:00")
    return int(at.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9] or 0)

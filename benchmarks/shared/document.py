"""Medians, ratios, and the JSON document of a benchmark: what was run, when, where, and figures."""

import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from core.clock import utc_now

DIGITS = 4
MILLISECONDS = 1_000
_LEAST_RUNS = 5

Figures = Mapping[str, float | None]


class BenchmarkError(Exception):
    """A benchmark can't go on; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound that the product promises, and what was measured."""

    name: str
    measured: float | None
    bound: float
    unit: str

    def as_json(self) -> dict[str, object]:
        """Return the promise, which is kept if the figure is measured and at most the bound."""
        return {
            "name": self.name,
            "bound": rounded(self.bound),
            "measured": None if self.measured is None else rounded(self.measured),
            "unit": self.unit,
            "is_kept": self.measured is not None and self.measured <= self.bound,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a benchmark has measured; `settings` adds to those of its plan."""

    results: Mapping[str, Any]
    promises: Sequence[Promise] = ()
    settings: Mapping[str, object] | None = None


def medians(readings: Sequence[Figures]) -> dict[str, float | None]:
    """Return the median of each figure over repeated readings; None where there was none."""
    names = list(dict.fromkeys(name for reading in readings for name in reading))
    return {name: median(reading.get(name) for reading in readings) for name in names}


def compared(repetitions: Sequence[Mapping[str, Figures]], peer: str) -> dict[str, Any]:
    """Return the medians of each contender, and of its ratios to a peer within a repetition."""
    names = list(dict.fromkeys(name for repetition in repetitions for name in repetition))
    of_each = {name: medians([repetition[name] for repetition in repetitions]) for name in names}
    ratios = {
        name: medians(
            [
                {figure: ratio(ours[name][figure], ours[peer].get(figure)) for figure in ours[name]}
                for ours in repetitions
            ]
        )
        for name in names
        if name != peer
    }
    return {"medians": of_each, f"ratios_to_{peer}": ratios, "repetitions": list(repetitions)}


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that were measured; None without any."""
    measured = [value for value in values if value is not None]
    return rounded(statistics.median(measured)) if measured else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return how many times theirs ours is; None where either was not measured or theirs is 0."""
    return rounded(ours / theirs) if ours is not None and theirs else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the value that `percent` of the values do not exceed (nearest rank)."""
    if not values:
        return None
    rank = max(1, -(-len(values) * percent // 100))
    return rounded(sorted(values)[int(rank) - 1])


def milliseconds_of(seconds: Sequence[float], *, name: str = "milliseconds") -> Figures:
    """Return the median, the 99th percentile and the longest of some durations."""
    milliseconds = [MILLISECONDS * duration for duration in seconds]
    return {
        f"{name}_p50": percentile(milliseconds, 50),
        f"{name}_p99": percentile(milliseconds, 99),
        f"{name}_max": percentile(milliseconds, 100),
    }


def timed(
    action: Callable[[], object], count: int, *, most_seconds: float = math.inf
) -> dict[str, float | None]:
    """Act once to warm up, and then again and again; return how long it took.

    After `most_seconds`, five times are enough.
    """
    action()
    took: list[float] = []
    while len(took) < count and (
        len(took) < _LEAST_RUNS or sum(took) < MILLISECONDS * most_seconds
    ):
        took.append(MILLISECONDS * seconds_of(action))
    return {"milliseconds": median(took), "milliseconds_p95": percentile(took, 95)}


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def rounded(value: float) -> float:
    """Return a figure with four digits: more would claim what was not measured."""
    return float(f"{value:.{DIGITS}g}")


def document(
    benchmark: str, outcome: Outcome, *, settings: Mapping[str, object], started_at: datetime
) -> dict[str, Any]:
    """Return the JSON document of a benchmark."""
    return {
        "benchmark": benchmark,
        "started_at": _text(started_at),
        "ended_at": _text(utc_now()),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "machine": {
            "cpu_model": _cpu_model(),
            "cpu_count": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load1": round(os.getloadavg()[0], 2),
        },
        "settings": {**settings, **(outcome.settings or {})},
        "results": dict(outcome.results),
        "promises": [promise.as_json() for promise in outcome.promises],
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "")


def _text(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")

"""Figures: medians, ratios, and the document that a benchmark prints.

A document is plain JSON: what was run, when, where, every reading, the medians, and the promises
with the figure that was measured beside the bound.
"""

import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from core.clock import utc_now

DIGITS = 4

Figures = Mapping[str, float | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A bound that the product promises, and what was measured."""

    name: str
    bound: float
    measured: float | None
    unit: str

    @property
    def is_kept(self) -> bool:
        """Return whether the figure is measured and at most the bound."""
        return self.measured is not None and self.measured <= self.bound


def medians(readings: Sequence[Figures]) -> dict[str, float | None]:
    """Return the median of each figure over repeated readings; None where there was none."""
    names = list(dict.fromkeys(name for reading in readings for name in reading))
    return {name: median(reading.get(name) for reading in readings) for name in names}


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that were measured, to four digits; None without any."""
    measured = [value for value in values if value is not None]
    return rounded(statistics.median(measured)) if measured else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return how many times theirs ours is; None where one was not measured or theirs is 0."""
    return rounded(ours / theirs) if ours is not None and theirs else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the value that `percent` of the values do not exceed (nearest rank)."""
    if not values:
        return None
    rank = max(1, -(-len(values) * percent // 100))
    return rounded(sorted(values)[int(rank) - 1])


def rounded(value: float) -> float:
    """Return a figure with four digits: more would claim what was not measured."""
    return float(f"{value:.{DIGITS}g}")


def document(
    benchmark: str,
    *,
    started_at: datetime,
    settings: Mapping[str, object],
    results: Mapping[str, object],
    promises: Sequence[Promise] = (),
) -> dict[str, object]:
    """Return the JSON document of one benchmark."""
    return {
        "benchmark": benchmark,
        "started_at": _text(started_at),
        "ended_at": _text(utc_now()),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "machine": machine(),
        "settings": dict(settings),
        "results": dict(results),
        "promises": [{**asdict(promise), "is_kept": promise.is_kept} for promise in promises],
    }


def machine() -> dict[str, object]:
    """Return what the figures were measured on."""
    return {
        "cpu_model": _field(Path("/proc/cpuinfo"), "model name"),
        "cpu_count": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load1": round(os.getloadavg()[0], 2),
    }


def write_document(content: Mapping[str, object], path: Path | None) -> None:
    """Print a document, and keep it in `path` if there is one."""
    if path is not None:
        keep_document(content, path)
    print(json.dumps(content, indent=2))


def keep_document(content: Mapping[str, object], path: Path) -> None:
    """Write a document into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")


def _field(path: Path, name: str) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _text(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")

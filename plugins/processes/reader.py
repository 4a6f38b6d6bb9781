"""Processes by state, threads, and how fast both change (`/proc`)."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from core.clock import to_ns
from plugins.base import PluginContext, gauges, rates
from plugins.procfs import ProcPlugin, named_numbers
from timeseries.points import FieldValue, Point

COUNTERS = {
    b"\nprocesses ": "forks_per_second",
    b"\nctxt ": "context_switches_per_second",
}
# Readings are not exactly on time: allow for a pass in each.
EARLY_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesConfig:
    """The interval between readings of the state of all processes.

    Attributes:
        states_interval_seconds: minimum interval of state readings; 0 for each reading.
    """

    states_interval_seconds: Annotated[float, Meta(ge=0)] = 10.0


class ProcessesPlugin(ProcPlugin):
    """Process counts; states are absent between two passes."""

    name = "processes"
    paths = ("stat", "loadavg")
    config_class = ProcessesConfig
    metrics = (
        *gauges(
            total=("processes", "all processes"),
            running=("processes", "running or runnable"),
            blocked=("processes", "in uninterruptible sleep, such as disk or NFS I/O"),
            sleeping=("processes", "in interruptible sleep"),
            idle=("processes", "idle kernel threads"),
            stopped=("processes", "stopped by a signal or a debugger"),
            zombies=("processes", "exited, not yet reaped by their parent"),
            threads=("threads", "all threads of all processes"),
        ),
        *rates(
            forks_per_second=("per second", "processes and threads started"),
            context_switches_per_second=("per second", "context switches"),
        ),
    )

    def __init__(self, config: ProcessesConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self._proc = context.proc
        self._pause = timedelta(seconds=config.states_interval_seconds * (1 - EARLY_SHARE))
        self._states_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        fields: dict[str, FieldValue] = {"threads": _threads(self.read("loadavg"))}
        fields |= (
            self._rates.rates("host", named_numbers(self.read("stat"), COUNTERS), now=now) or {}
        )
        if self._states_at is None or not timedelta(0) <= now - self._states_at < self._pause:
            self._states_at = now
            fields |= count_states(self._proc)
        return [Point("processes", {}, fields, to_ns(now))]


def _threads(loadavg: bytes) -> int:
    """Return the number after the slash of `0.63 0.84 0.47 2/122 32056`."""
    return int(loadavg.split(b"/", 1)[1].split(b" ", 1)[0])


# A program name may contain anything, including parentheses, up to this length.
STAT_HEAD_BYTES = 256
FIELD_OF_STATE = {
    "R": "running",
    "D": "blocked",
    "S": "sleeping",
    "I": "idle",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombies",
    "X": "zombies",
}
STATE_FIELDS = ("running", "blocked", "sleeping", "idle", "stopped", "zombies")


def count_states(proc: Path) -> dict[str, int]:
    """Return the number of processes, in total and by state.

    Raises:
        OSError: the folder can't be listed.
    """
    folder = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        states = Counter(
            state
            for name in os.listdir(folder)  # noqa: PTH208 - a Path for each of thousands costs more
            if name.isdigit() and (state := _state(folder, name))
        )
    finally:
        os.close(folder)
    counts = dict.fromkeys(("total", *STATE_FIELDS), 0)
    for state, number in states.items():
        counts["total"] += number
        counts[FIELD_OF_STATE.get(state, "sleeping")] += number
    return counts


def _state(folder: int, process: str) -> str:
    """Return the state letter of a process; empty if it has exited."""
    try:
        file = os.open(f"{process}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        head = os.read(file, STAT_HEAD_BYTES)
    except OSError:
        return ""
    finally:
        os.close(file)
    end_of_name = head.rfind(b") ")
    return chr(head[end_of_name + 2]) if end_of_name > 0 else ""

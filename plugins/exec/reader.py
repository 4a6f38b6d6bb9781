"""Readings that other programs write, as lines of collectd's `PUTVAL`.

Programs write into pipes; a gathering takes what is in them and never waits.
"""

import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginError, PluginTraits, PluginUnavailableError
from plugins.collectd.commands import CommandError, parse_command
from plugins.collectd.complaints import Complaints
from plugins.collectd.mapping import NOTIFICATION_METRICS, PointMapper
from plugins.collectd.types_db import Types, load_types
from plugins.collectd.values import LEVELS, Identity, Notification, ValueList
from plugins.exec.program import END_GRACE_SECONDS, Bounds, Output, Program, ProgramConfig
from timeseries.points import Point

log = logging.getLogger(__name__)

LOGGED_LINES_PER_GATHER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecConfig:
    """Which programs run, and how much is taken from them.

    Attributes:
        programs: see `ProgramConfig`.
        types_db: files of types beside the common ones and those of an installed collectd.
        max_line_bytes: a longer line is dropped.
        max_output_bytes: what a program writes beyond it between two readings is dropped.
    """

    programs: tuple[ProgramConfig, ...] = ()
    types_db: tuple[Path, ...] = ()
    max_line_bytes: Annotated[int, Meta(ge=64, le=65536)] = 4096
    max_output_bytes: Annotated[int, Meta(ge=4096, le=16777216)] = 262144


@dataclass(slots=True)
class _Watched:
    program: Program
    complaints: Complaints
    line_number: int = 0
    read_at: datetime | None = None


class ExecPlugin:
    """One point for each `PUTVAL` value list; see README.md."""

    name: ClassVar[str] = "exec"
    config_class: ClassVar[type] = ExecConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = NOTIFICATION_METRICS

    def __init__(self, config: ExecConfig, context: PluginContext) -> None:
        del context
        self._config = config
        hostname = socket.gethostname()
        self._hostname = hostname
        bounds = Bounds(line_bytes=config.max_line_bytes, output_bytes=config.max_output_bytes)
        self._watched = [
            _watch(Program(one, hostname=hostname, bounds=bounds)) for one in config.programs
        ]
        self._types: Types = {}
        self._mapper: PointMapper | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return what the programs wrote since the last reading; start those whose time it is."""
        if not self._watched:
            raise PluginUnavailableError("no programs are configured")
        if self._mapper is None:
            self._types = load_types(self._config.types_db)
            self._mapper = PointMapper(self._types, host=self._hostname)
        points: list[Point] = []
        for watched in self._watched:
            output = watched.program.step(now)
            points += self._points(watched, output, self._mapper, now)
            watched.read_at = now
        return points

    def close(self) -> None:
        """End the programs: SIGTERM to all, and SIGKILL where that does not help."""
        for watched in self._watched:
            watched.program.ask_to_end()
        deadline = time.monotonic() + END_GRACE_SECONDS
        for watched in self._watched:
            watched.program.end(max(0.0, deadline - time.monotonic()))

    def _points(
        self, watched: _Watched, output: Output, mapper: PointMapper, now: datetime
    ) -> list[Point]:
        now_ns, complaints = to_ns(now), watched.complaints
        lists, notifications = self._parse(watched, output.lines)
        points = [mapper.notification(one, now_ns=now_ns) for one in notifications]
        for values in _dated(lists, output, since_at=watched.read_at or now, now=now):
            try:
                point = mapper.point(
                    values, now_ns=now_ns, interval_seconds=watched.program.interval_seconds
                )
            except PluginError as error:
                complaints.note(str(error))
            else:
                points += [point] if point is not None else []
        complaints.drop(output.dropped_bytes)
        complaints.flush()
        _log_lines(watched.program.name, notifications, output.error_lines)
        return points

    def _parse(
        self, watched: _Watched, lines: list[str]
    ) -> tuple[list[ValueList], list[Notification]]:
        lists: list[ValueList] = []
        notifications: list[Notification] = []
        for line in lines:
            watched.line_number += 1
            try:
                said = parse_command(line, self._types)
            except CommandError as error:
                watched.complaints.note(f"line {watched.line_number}, {error}")
                continue
            if isinstance(said, Notification):
                notifications.append(said)
            elif said is not None:
                lists += said
        return lists, notifications


def _watch(program: Program) -> _Watched:
    return _Watched(program, Complaints(f"exec: {program.name}", unit="bytes"))


def _dated(
    lists: list[ValueList], output: Output, *, since_at: datetime, now: datetime
) -> Iterable[ValueList]:
    """Give each `N` its time.

    Several of one series are spread over the time since the last reading: one that runs on wrote
    its last one now, and a run that is over mostly wrote when it began.
    """
    counts = Counter(values.identity for values in lists if values.time_ns is None)
    begin_ns, end_ns = to_ns(max(since_at, output.started_at or since_at)), to_ns(now)
    seen: Counter[Identity] = Counter()
    for values in lists:
        if values.time_ns is not None:
            yield values
            continue
        if not output.has_ended:
            seen[values.identity] += 1
        share_ns = (end_ns - begin_ns) * seen[values.identity] // counts[values.identity]
        if output.has_ended:
            seen[values.identity] += 1
        yield replace(values, time_ns=begin_ns + share_ns)


def _log_lines(name: str, notifications: list[Notification], error_lines: list[str]) -> None:
    """Log what a program has to say to people, bounded."""
    for said in notifications[:LOGGED_LINES_PER_GATHER]:
        about = "/".join(filter(None, (said.plugin, said.plugin_instance, said.type)))
        where = f" ({about})" if about else ""
        log.log(LEVELS[said.severity], "exec: %s notifies%s: %s", name, where, said.message)
    for line in error_lines[:LOGGED_LINES_PER_GATHER]:
        log.warning("exec: %s: %s", name, line)
    lines = (notifications, error_lines)
    more = sum(max(0, len(one) - LOGGED_LINES_PER_GATHER) for one in lines)
    if more:
        log.warning("exec: %s: %d lines more are not shown", name, more)

"""Runs programs that write readings as `PUTVAL` lines, like collectd's exec plugin.

Programs write to pipes; a reading drains them without waiting.
"""

import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from core.clock import to_ns, utc_now
from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginError,
    PluginTraits,
    PluginUnavailableError,
)
from plugins.collectd.commands import CommandError, parse_command
from plugins.collectd.mapping import NOTIFICATION_METRICS, ErrorLog, PointMapper
from plugins.collectd.types_db import Types, load_types
from plugins.collectd.values import LEVELS, Identity, Notification, ValueList
from plugins.exec.program import END_GRACE_SECONDS, Bounds, Output, Program, ProgramConfig
from timeseries.points import Point

log = logging.getLogger(__name__)

LOGGED_LINES_PER_GATHER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecConfig:
    """Programs to run, and limits of their output.

    Attributes:
        programs: see `ProgramConfig`.
        types_db: additional types.db files.
        max_line_bytes: longer lines are dropped.
        max_output_bytes: limit per program and reading; the rest is dropped.
    """

    programs: tuple[ProgramConfig, ...] = ()
    types_db: tuple[Path, ...] = ()
    max_line_bytes: Annotated[int, Meta(ge=64, le=65536)] = 4096
    max_output_bytes: Annotated[int, Meta(ge=4096, le=16777216)] = 262144


@dataclass(slots=True)
class _Watched:
    program: Program
    errors: ErrorLog
    line_number: int = 0
    read_at: datetime | None = None


class ExecPlugin(BasePlugin):
    """One point for each `PUTVAL` value list; see README.md."""

    name = "exec"
    config_class = ExecConfig
    # One to start a program that runs once, and one for its next run.
    traits = PluginTraits(intervals_to_rates=2)
    metrics = NOTIFICATION_METRICS

    def __init__(self, config: ExecConfig, context: PluginContext) -> None:
        del context
        self._config = config
        hostname = socket.gethostname()
        self._hostname = hostname
        bounds = Bounds(line_bytes=config.max_line_bytes, output_bytes=config.max_output_bytes)
        programs = [
            Program(settings, hostname=hostname, bounds=bounds) for settings in config.programs
        ]
        self._watched = [
            _Watched(program, ErrorLog(f"exec: {program.name}", unit="bytes"))
            for program in programs
        ]
        self._types: Types = {}
        self._mapper: PointMapper | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the output since the last reading; start programs that are due."""
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

    def last_points(self, now: datetime) -> Iterable[Point]:
        """Stop the programs with SIGTERM, then SIGKILL; return what they wrote until then."""
        for watched in self._watched:
            watched.program.ask_to_end()
        deadline = time.monotonic() + END_GRACE_SECONDS
        points: list[Point] = []
        for watched in self._watched:
            output = watched.program.end(max(0.0, deadline - time.monotonic()))
            if self._mapper is not None:
                points += self._points(watched, output, self._mapper, now)
        return points

    def close(self) -> None:
        """Stop the programs that still run."""
        self.last_points(utc_now())

    def _points(
        self, watched: _Watched, output: Output, mapper: PointMapper, now: datetime
    ) -> list[Point]:
        now_ns, errors = to_ns(now), watched.errors
        lists, notifications = self._parse(watched, output.lines)
        points = [
            mapper.notification(notification, now_ns=now_ns) for notification in notifications
        ]
        for values in _dated(lists, output, since_at=watched.read_at or now, now=now):
            try:
                point = mapper.point(
                    values, now_ns=now_ns, interval_seconds=watched.program.interval_seconds
                )
            except PluginError as error:
                errors.note(str(error))
            else:
                points += [point] if point is not None else []
        errors.drop(output.dropped_bytes)
        errors.flush()
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
                watched.errors.note(f"line {watched.line_number}, {error}")
                continue
            if isinstance(said, Notification):
                notifications.append(said)
            elif said is not None:
                lists += said
        return lists, notifications


def _dated(
    lists: list[ValueList], output: Output, *, since_at: datetime, now: datetime
) -> Iterable[ValueList]:
    """Resolve `N` times.

    Several values of one series are spread over the time since the last reading, the last one now;
    for a program that has exited, the time is its start.
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
    """Log a program's standard error, up to a limit."""
    for notification in notifications[:LOGGED_LINES_PER_GATHER]:
        names = notification.identity
        about = "/".join(filter(None, (names.plugin, names.plugin_instance, names.type)))
        where = f" ({about})" if about else ""
        log.log(
            LEVELS[notification.severity],
            "exec: %s notifies%s: %s",
            name,
            where,
            notification.message,
        )
    for line in error_lines[:LOGGED_LINES_PER_GATHER]:
        log.warning("exec: %s: %s", name, line)
    lines = (notifications, error_lines)
    unlisted = sum(max(0, len(entries) - LOGGED_LINES_PER_GATHER) for entries in lines)
    if unlisted:
        log.warning("exec: %s: %d more lines not shown", name, unlisted)

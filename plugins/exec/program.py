"""One program: started without a shell, read without waiting, started again after its end."""

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Annotated

import msgspec

from plugins.exec.lines import PipeLines

log = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 600.0
END_GRACE_SECONDS = 2.0
END_POLL_SECONDS = 0.02
ERROR_BYTES_PER_GATHER = 4096
_MOST_DOUBLINGS = 16

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ProgramConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table `[[plugins.exec.programs]]`.

    Attributes:
        command: the program and its arguments; no shell reads them.
        name: what the log calls it; the program's file name when empty.
        interval_seconds: the program learns it as COLLECTD_INTERVAL, and is started again no more
            often.
        environment: variables added to those of the agent.
        time_limit_seconds: a run that takes longer is ended; None lets it run for ever.
    """

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    name: str = ""
    interval_seconds: Seconds = 10.0
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    time_limit_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much is taken from a program: bytes of a line, and bytes in one reading."""

    line_bytes: int
    output_bytes: int


@dataclass(slots=True)
class Output:
    """What one reading of a program gave.

    Attributes:
        has_ended: whether the run that wrote it is over.
        started_at: when that run began.
    """

    lines: list[str] = field(default_factory=list)
    error_lines: list[str] = field(default_factory=list)
    dropped_bytes: int = 0
    has_ended: bool = False
    started_at: datetime | None = None


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    started_at: datetime
    output: PipeLines
    errors: PipeLines
    ended_at: datetime | None = None  # when it was asked to end


class Program:
    """Keeps one program running and hands over what it writes. For one thread."""

    def __init__(self, config: ProgramConfig, *, hostname: str, bounds: Bounds) -> None:
        self.name = config.name or PurePath(config.command[0]).name
        self.interval_seconds = config.interval_seconds
        self._config = config
        self._bounds = bounds
        self._environ = _environ(config, hostname)
        self._run: _Run | None = None
        self._due_at: datetime | None = None
        self._failures = 0

    def step(self, now: datetime) -> Output:
        """Return what was written since the last step; start or end the program as is its time."""
        output = Output()
        if self._run is not None:
            output = self._read(self._run, now)
        if self._run is None and (self._due_at is None or now >= self._due_at):
            self._start(now)
        return output

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program and what it started."""
        if self._run is not None:
            _signal(self._run.process, signal.SIGTERM)

    def end(self, grace_seconds: float) -> None:
        """Wait so long, then kill the program and what it started, and release its pipes."""
        run, self._run = self._run, None
        if run is None:
            return
        deadline = time.monotonic() + grace_seconds
        while not _has_ended(run.process) and time.monotonic() < deadline:
            time.sleep(END_POLL_SECONDS)
        _end_group(run.process)

    def _start(self, now: datetime) -> None:
        self._due_at = now + timedelta(seconds=self._config.interval_seconds)
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator names the program
                self._config.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environ,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._fail(now, f"can't be started: {error.strerror}")
            return
        assert process.stdout is not None  # noqa: S101 - both are pipes
        assert process.stderr is not None  # noqa: S101
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # a program need not wait for the next reading then
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, self._bounds.output_bytes)
        longest = self._bounds.line_bytes
        self._run = _Run(
            process,
            started_at=now,
            output=PipeLines(process.stdout.fileno(), longest_bytes=longest),
            errors=PipeLines(process.stderr.fileno(), longest_bytes=longest),
        )

    def _read(self, run: _Run, now: datetime) -> Output:
        has_ended = _has_ended(run.process)  # asked first: nothing is written after it
        take = PipeLines.take_last if has_ended else PipeLines.take
        output = Output(
            lines=take(run.output, self._bounds.output_bytes),
            error_lines=take(run.errors, ERROR_BYTES_PER_GATHER),
            has_ended=has_ended,
            started_at=run.started_at,
        )
        output.dropped_bytes = run.output.dropped_bytes + run.errors.dropped_bytes
        run.output.dropped_bytes = run.errors.dropped_bytes = 0
        if has_ended:
            self._finish(run, now)
        else:
            self._hold_to_limit(run, now)
        return output

    def _finish(self, run: _Run, now: datetime) -> None:
        self._run = None
        _end_group(run.process)
        self._due_at = max(now, run.started_at + timedelta(seconds=self._config.interval_seconds))
        ran_seconds = (now - run.started_at).total_seconds()
        if run.process.returncode == 0 or ran_seconds >= LONGEST_RETRY_SECONDS:
            self._failures = 0
        if run.process.returncode != 0:
            self._fail(now, _ending(run.process.returncode))

    def _fail(self, now: datetime, reason: str) -> None:
        self._failures += 1
        doubled = self._config.interval_seconds * 2.0 ** min(self._failures, _MOST_DOUBLINGS)
        wait_seconds = max(self._config.interval_seconds, min(LONGEST_RETRY_SECONDS, doubled))
        self._due_at = now + timedelta(seconds=wait_seconds)
        log.warning("exec: %s %s; next start in %.0f s", self.name, reason, wait_seconds)

    def _hold_to_limit(self, run: _Run, now: datetime) -> None:
        limit_seconds = self._config.time_limit_seconds
        if run.ended_at is not None:
            if (now - run.ended_at).total_seconds() >= END_GRACE_SECONDS:
                _signal(run.process, signal.SIGKILL)
        elif limit_seconds and (now - run.started_at).total_seconds() >= limit_seconds:
            log.warning("exec: %s has run for over %.0f s: it is ended", self.name, limit_seconds)
            run.ended_at = now
            _signal(run.process, signal.SIGTERM)


def _environ(config: ProgramConfig, hostname: str) -> Mapping[str, str]:
    interval = {"COLLECTD_INTERVAL": f"{config.interval_seconds:.3f}"}
    return {**os.environ, **interval, "COLLECTD_HOSTNAME": hostname, **config.environment}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether it is over, and leave it unreaped: its group's id stays its own so long."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a program and of what it started, and release its pipes."""
    _signal(process, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by signal {-returncode}"
    return f"ended with status {returncode}"

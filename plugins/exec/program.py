"""One program: started without a shell, read without waiting, started again after its end."""

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Annotated

import msgspec

log = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 600.0
READ_BYTES = 65536
END_GRACE_SECONDS = 2.0
END_POLL_SECONDS = 0.02
ERROR_BYTES_PER_GATHER = 4096
_MOST_DOUBLINGS = 16

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ProgramConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table `[[plugins.exec.programs]]`.

    Attributes:
        command: the program and its arguments, without a shell.
        name: name in the log; defaults to the file name.
        interval_seconds: passed as COLLECTD_INTERVAL; also the minimum time between starts.
        environment: additional environment variables.
        time_limit_seconds: a longer run is terminated; None for no limit.
    """

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    name: str = ""
    interval_seconds: Seconds = 10.0
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    time_limit_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a program's output: bytes of a line, and bytes per reading."""

    line_bytes: int
    output_bytes: int


@dataclass(slots=True)
class Output:
    """Output of a program in one reading.

    Attributes:
        has_ended: whether the program has exited.
        started_at: when the program started.
    """

    lines: list[str] = field(default_factory=list)
    error_lines: list[str] = field(default_factory=list)
    dropped_bytes: int = 0
    has_ended: bool = False
    started_at: datetime | None = None


class PipeLines:
    """Reads complete lines from a pipe.

    Args:
        descriptor: the read end, non-blocking.
        longest_bytes: longer lines are dropped.

    Attributes:
        dropped_bytes: bytes dropped since it was reset: long lines, and output above the limit.
    """

    def __init__(self, descriptor: int, *, longest_bytes: int) -> None:
        self._descriptor = descriptor
        self._longest_bytes = longest_bytes
        self._rest = b""
        self._is_skipping = False
        self.dropped_bytes = 0

    def take(self, max_bytes: int) -> list[str]:
        """Return complete lines of at most this many bytes, and drop the rest of the pipe.

        Invalid UTF-8 is replaced.
        """
        taken, is_more = self._read(max_bytes)
        parts = (self._rest + taken).split(b"\n")
        self._rest = parts.pop()
        if is_more:
            self._drop_rest_of_pipe(max_bytes)
        lines = [line for part in parts if (line := self._line(part)) is not None]
        if len(self._rest) > self._longest_bytes:
            self.dropped_bytes += len(self._rest)
            self._rest = b""
            self._is_skipping = True
        return lines

    def take_last(self, max_bytes: int) -> list[str]:
        """Return the last lines of a program, including an unterminated one."""
        lines = self.take(max_bytes)
        last = self._line(self._rest) if self._rest else None
        self._rest = b""
        return [*lines, last] if last is not None else lines

    def _read(self, max_bytes: int) -> tuple[bytes, bool]:
        """Read up to a limit; also return whether there may be more."""
        chunks: list[bytes] = []
        size = 0
        while size < max_bytes:
            try:
                chunk = os.read(self._descriptor, min(READ_BYTES, max_bytes - size))
            except BlockingIOError:
                break
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        else:
            return b"".join(chunks), True
        return b"".join(chunks), False

    def _drop_rest_of_pipe(self, max_bytes: int) -> None:
        """Drop output above the limit, so that the next reading is current."""
        dropped, _ = self._read(max_bytes)
        if not dropped:
            return
        end = dropped.rfind(b"\n") + 1 or len(dropped)
        self.dropped_bytes += len(self._rest) + end
        self._rest = dropped[end:]
        self._is_skipping = not dropped[:end].endswith(b"\n")

    def _line(self, part: bytes) -> str | None:
        is_tail = self._is_skipping
        self._is_skipping = False
        if is_tail or len(part) > self._longest_bytes:
            self.dropped_bytes += len(part)
            return None
        return part.decode(errors="replace")


@dataclass(slots=True)
class _Run:
    process: subprocess.Popen[bytes]
    started_at: datetime
    output: PipeLines
    errors: PipeLines
    ended_at: datetime | None = None  # when SIGTERM was sent


class Program:
    """Runs one program and returns its output. Not thread-safe."""

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
        """Return the output since the last step; start or stop the program when due."""
        output = Output()
        if self._run is not None:
            output = self._read(self._run, now)
        if self._run is None and (self._due_at is None or now >= self._due_at):
            self._start(now)
        return output

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program and its children."""
        if self._run is not None:
            _signal(self._run.process, signal.SIGTERM)

    def end(self, grace_seconds: float) -> Output:
        """Wait this long, then kill the program and its children; return its last output."""
        run, self._run = self._run, None
        if run is None:
            return Output()
        deadline = time.monotonic() + grace_seconds
        while not _has_ended(run.process) and time.monotonic() < deadline:
            time.sleep(END_POLL_SECONDS)
        output = self._take(run, PipeLines.take_last)
        _end_group(run.process)
        return output

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
        with contextlib.suppress(OSError):  # so that the program rarely blocks between readings
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, self._bounds.output_bytes)
        longest = self._bounds.line_bytes
        self._run = _Run(
            process,
            started_at=now,
            output=PipeLines(process.stdout.fileno(), longest_bytes=longest),
            errors=PipeLines(process.stderr.fileno(), longest_bytes=longest),
        )

    def _read(self, run: _Run, now: datetime) -> Output:
        has_ended = _has_ended(run.process)  # check first: nothing is written after the exit
        output = self._take(run, PipeLines.take_last if has_ended else PipeLines.take)
        output.has_ended = has_ended
        if has_ended:
            self._finish(run, now)
        else:
            self._hold_to_limit(run, now)
        return output

    def _take(self, run: _Run, take: Callable[[PipeLines, int], list[str]]) -> Output:
        output = Output(
            lines=take(run.output, self._bounds.output_bytes),
            error_lines=take(run.errors, ERROR_BYTES_PER_GATHER),
            started_at=run.started_at,
        )
        output.dropped_bytes = run.output.dropped_bytes + run.errors.dropped_bytes
        run.output.dropped_bytes = run.errors.dropped_bytes = 0
        return output

    def _finish(self, run: _Run, now: datetime) -> None:
        self._run = None
        _end_group(run.process)
        self._due_at = max(now, run.started_at + timedelta(seconds=self._config.interval_seconds))
        ran_seconds = (now - run.started_at).total_seconds()
        if run.process.returncode == 0 or ran_seconds >= LONGEST_RETRY_SECONDS:
            self._failures = 0
        if run.process.returncode != 0:
            code = run.process.returncode
            self._fail(
                now, f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
            )

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
            log.warning("exec: %s ran for over %.0f s: terminating it", self.name, limit_seconds)
            run.ended_at = now
            _signal(run.process, signal.SIGTERM)


def _environ(config: ProgramConfig, hostname: str) -> Mapping[str, str]:
    interval = {"COLLECTD_INTERVAL": f"{config.interval_seconds:.3f}"}
    return {**os.environ, **interval, "COLLECTD_HOSTNAME": hostname, **config.environment}


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether it has exited, without reaping it: its process group ID stays reserved."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of a program's process group, and close its pipes."""
    _signal(process, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()

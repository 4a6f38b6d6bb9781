"""From the host's logs to the portal: rates, the buffer on disk, and uploads.

Lines go to a buffer like that of samples, and leave it when the portal has stored them. The cursor
of the source is stored after the lines, so that a crash repeats lines and loses none. What is
dropped (above a unit's rate, or because the buffer is full) is counted by a line of its own.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from collector.buffering.buffer import Batch, DiskBuffer
from collector.buffering.frames import Frame
from collector.data_dir import load_json, save_json
from collector.errors import PortalRefusedError
from collector.logs.journal import Journal
from collector.logs.kernel_ring import KernelRing
from collector.logs.settings import LogSettings
from collector.sending.portal_connection import PortalConnection
from core.clock import Clock, to_ns
from protocol.lines import MAX_LINES, ApplianceLine, LineEvent, LogLevel

log = logging.getLogger(__name__)

READ_SECONDS = 2.0
SETTLE_SECONDS = 0.2
WAIT_FOR_FRAMES_SECONDS = 60.0
FRAME_LINES = 1000
FRAME_BYTES = 128 * 1024
UPLOAD_BYTES = 256 * 1024
RETRY_READ_SECONDS = 30.0
BURST_SECONDS = 10.0
CURSOR_NAME = "source.json"
_NOT_FOUND = 404
_UNDELIVERABLE = frozenset({400, 413, 422})
_OLDER_PORTAL_SECONDS = 600.0
_UNIT = "vedette-agent"


class LineSource(Protocol):
    """Where lines come from; it continues after its cursor."""

    @property
    def cursor(self) -> str:
        """The last line that was read."""

    def read(self, timeout_seconds: float) -> Sequence[ApplianceLine]:
        """Return new lines, after waiting for the first of them."""

    def close(self) -> None:
        """Release what is open."""


class SourceState(msgspec.Struct):
    """What survives a restart: the position in each source, and drops that were reported."""

    cursors: dict[str, str] = {}
    reported_drops: int = 0


class UnitRates:
    """Limits the lines of each unit; what is above is counted."""

    def __init__(self, lines_per_second: float, monotonic: Callable[[], float]) -> None:
        self._lines_per_second = lines_per_second
        self._monotonic = monotonic
        self._allowed: dict[str, tuple[float, float]] = {}
        self._dropped: dict[str, int] = {}

    def admitted(self, lines: Sequence[ApplianceLine]) -> list[ApplianceLine]:
        """Return the lines below the rate of their units; events always are."""
        return [line for line in lines if line.event or self._admit(line.unit)]

    def drops(self) -> dict[str, int]:
        """Return how many lines were dropped since the last call, by unit."""
        drops, self._dropped = self._dropped, {}
        return drops

    def _admit(self, unit: str) -> bool:
        now, burst = self._monotonic(), self._lines_per_second * BURST_SECONDS
        allowed, at = self._allowed.get(unit, (burst, now))
        allowed = min(burst, allowed + (now - at) * self._lines_per_second)
        is_admitted = allowed >= 1
        self._allowed[unit] = (allowed - is_admitted, now)
        if not is_admitted:
            self._dropped[unit] = self._dropped.get(unit, 0) + 1
        return is_admitted


class HostLogs:
    """Reads the host's logs in one thread and sends them in another.

    Args:
        settings: which lines.
        folder: of the buffer.
        clock: the time.
        max_age_seconds: older lines are dropped.
        monotonic: measures rates.
    """

    def __init__(
        self,
        settings: LogSettings,
        folder: Path,
        *,
        clock: Clock,
        max_age_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._state_path = folder / CURSOR_NAME
        self.buffer = DiskBuffer(
            folder,
            max_bytes=settings.buffer_max_bytes,
            max_age_seconds=max_age_seconds,
            clock=clock,
            backlog_points_per_second=MAX_LINES,
        )
        self._state = load_json(self._state_path, SourceState) or SourceState()
        self._rates = UnitRates(settings.lines_per_second, monotonic)
        self._source: LineSource | None = None
        self._problem = ""

    def read_step(self) -> float:
        """Move new lines to the buffer; return the seconds until the next step."""
        try:
            source = self._source = self._source or self._open()
            if source is None:
                return RETRY_READ_SECONDS
            lines = self._rates.admitted(_read(source))
        except OSError as error:
            self._close_source()
            self._warn(f"logs of the host can't be read: {error}")
            return RETRY_READ_SECONDS
        self._problem = ""
        lines += self._notices()
        for frame in frames_of(lines):
            self.buffer.append(frame)
        self._save_cursor(source)
        return 0.0

    def send_step(self, portal: PortalConnection) -> float:
        """Send lines that wait; return the seconds until the next step.

        Raises:
            PortalUnreachableError: the portal does not answer; nothing is lost.
            PortalRefusedError: the portal refuses this agent.
        """
        if not self.buffer.wait_for_frames(WAIT_FOR_FRAMES_SECONDS):
            return 0.0
        batch = self.buffer.read(max_points=MAX_LINES, max_bytes=UPLOAD_BYTES)
        if batch is None:
            return 0.0
        try:
            portal.send_lines(upload_of(batch))
        except PortalRefusedError as error:
            if error.http_status == _NOT_FOUND:
                self._warn("the portal is older than this agent and takes no logs of the host")
                return _OLDER_PORTAL_SECONDS
            if error.http_status not in _UNDELIVERABLE:
                raise
            log.warning("%d log lines can't be delivered: %s", batch.points, error.message)
        self.buffer.acknowledge(batch)
        return 0.0

    def stop_waiting(self) -> None:
        """Let the thread that sends end."""
        self.buffer.stop_waiting()

    def close(self) -> None:
        """Close source and buffer."""
        self._close_source()
        self.buffer.close()

    def _open(self) -> LineSource | None:
        settings, cursors = self._settings, self._state.cursors
        if settings.kernel == "none" and not settings.units:
            return None
        if Journal.is_available():
            return Journal(settings, cursor=cursors.get(Journal.__name__, ""))
        if KernelRing.is_available() and settings.kernel != "none":
            return KernelRing(settings, cursor=cursors.get(KernelRing.__name__, ""))
        self._warn("this host has no journal, and this user may not read /dev/kmsg: no logs")
        return None

    def _notices(self) -> list[ApplianceLine]:
        """Return lines that say what was dropped."""
        rate = self._settings.lines_per_second
        texts = [
            f"dropped {count} lines of {unit or 'unknown units'}: more than {rate:g} a second"
            for unit, count in self._rates.drops().items()
        ]
        dropped = self.buffer.losses.dropped_points
        if dropped > self._state.reported_drops:
            count = dropped - self._state.reported_drops
            texts.append(f"dropped {count} lines: the portal was away for too long")
            self._state.reported_drops = dropped
        return [
            ApplianceLine(
                at_ns=to_ns(self._clock()),
                text=text,
                level=LogLevel.WARNING,
                unit=_UNIT,
                event=LineEvent.DROPPED,
            )
            for text in texts
        ]

    def _save_cursor(self, source: LineSource) -> None:
        name, cursor = type(source).__name__, source.cursor
        if cursor and self._state.cursors.get(name) != cursor:
            self._state.cursors[name] = cursor
            save_json(self._state_path, self._state)

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _warn(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem


def upload_of(batch: Batch) -> bytes:
    """Return a batch as the body of an upload; a frame has the same key whenever it is sent."""
    batches = [
        b'{"key":"%s","lines":%s}'
        % (hashlib.blake2b(frame.payload, digest_size=24).hexdigest().encode(), frame.payload)
        for frame in batch.frames
    ]
    return b'{"batches":[%s]}' % b",".join(batches)


def _read(source: LineSource) -> list[ApplianceLine]:
    """Return the lines that are there, so that many share a write to the disk."""
    lines = list(source.read(READ_SECONDS))
    while lines and len(lines) < FRAME_LINES and (following := source.read(SETTLE_SECONDS)):
        lines += following
    return lines


def frames_of(lines: Sequence[ApplianceLine]) -> Iterator[Frame]:
    """Yield lines as frames of limited size."""
    encoded = [msgspec.json.encode(line) for line in lines]
    start = size = 0
    for end, content in enumerate(encoded):
        if end > start and (size + len(content) > FRAME_BYTES or end - start == FRAME_LINES):
            yield _frame(lines[start:end], encoded[start:end])
            start, size = end, 0
        size += len(content) + 1
    if start < len(lines):
        yield _frame(lines[start:], encoded[start:])


def _frame(lines: Sequence[ApplianceLine], encoded: Sequence[bytes]) -> Frame:
    newest_ns = max(line.at_ns for line in lines)
    return Frame(b"[%s]" % b",".join(encoded), len(lines), newest_ns)

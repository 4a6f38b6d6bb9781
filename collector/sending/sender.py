"""The sender: sends batches from the buffer to the write target.

The response decides what happens to a batch:

    2xx                       acknowledge it: the samples are durable
    400, 422                  the good lines were stored: log the others and acknowledge the batch
    413                       send it in halves, down to single lines
    401, 403                  keep it and log a warning; try the next address
    429                       keep it and wait
    502, 503, 504, late       keep it and retry later, elsewhere if `/health` isn't answered either
    no response               keep it and retry later, at the next address if there is one

If a server rejects a batch without naming lines, the sender bisects it, up to a number of requests.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from random import Random

from collector.buffering.buffer import BATCH_POINTS, Batch, DiskBuffer
from collector.periodic_task import Backoff
from collector.sending.access_points import AccessPoints
from collector.sending.http import (
    error_message,
    is_web_page,
    rejected_lines,
    retry_after_seconds,
)
from collector.sending.write_targets import NO_RESPONSE, WriteResponse, WriteTarget
from core.clock import Clock
from timeseries.lineprotocol.grammar import logical_lines

log = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 60.0
MAX_BISECTIONS = 32
SUCCESS = range(200, 300)
MAX_UNDELIVERABLE_BYTES = 1024 * 1024


class Outcome(StrEnum):
    """The outcome of sending a batch."""

    NOTHING = "nothing"
    SENT = "sent"
    PARTLY_SENT = "partly_sent"
    REFUSED = "refused"
    FAILED = "failed"


DELIVERED = frozenset({Outcome.SENT, Outcome.PARTLY_SENT})


@dataclass(frozen=True, slots=True)
class SendResult:
    """An outcome, and how long to wait before the next batch."""

    outcome: Outcome
    wait_seconds: float = 0.0


@dataclass(slots=True)
class SenderCounters:
    """Counters since the start."""

    sent_points: int = 0
    failures: int = 0
    undeliverable_lines: int = 0


class UndeliverableLines:
    """A log of lines that the server rejects. At `max_bytes / 2` it is rotated to `NAME.1`."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_UNDELIVERABLE_BYTES) -> None:
        self._path = path
        self._half_bytes = max_bytes // 2

    def add(self, lines: Sequence[bytes], *, reason: str, rejected_at: datetime) -> None:
        """Append lines, after a comment with the time and the reason."""
        heading = f"# {rejected_at.isoformat(timespec='seconds')} {reason}".replace("\n", " ")
        content = b"\n".join([heading.encode(), *lines, b""])[-self._half_bytes :]
        try:
            if self._path.exists() and self._path.stat().st_size + len(content) > self._half_bytes:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            with self._path.open("ab") as file:
                file.write(content)
        except OSError as error:
            log.warning("can't write %s, rejected lines are lost: %s", self._path, error)


class Sender:
    """Drains the buffer to the server. For one thread.

    Args:
        buffer: what to send.
        access_points: the addresses.
        target: writes to one of them.
        clock: the time.
        undeliverable: logs rejected lines.
        random: jitter of retries.
    """

    def __init__(
        self,
        buffer: DiskBuffer,
        access_points: AccessPoints,
        target: WriteTarget,
        *,
        clock: Clock,
        undeliverable: UndeliverableLines,
        random: Random | None = None,
    ) -> None:
        self._buffer = buffer
        self._access_points = access_points
        self._target = target
        self._clock = clock
        self._undeliverable = undeliverable
        self._backoff = Backoff(random=random)
        self._logged_at: dict[str, float] = {}
        self._bisections_left = MAX_BISECTIONS
        self.counters = SenderCounters()

    def send_next(self) -> SendResult:
        """Send the next batch; the buffer keeps it until it is delivered.

        Call `DiskBuffer.wait_for_frames` first, which blocks until there is something to send.
        """
        batch = self._buffer.read(max_points=BATCH_POINTS)
        if batch is None:
            return SendResult(Outcome.NOTHING)
        self._bisections_left = MAX_BISECTIONS
        result = self._send([frame.payload for frame in batch.frames])
        if result.outcome in DELIVERED:
            self._acknowledge(batch)
        else:
            self.counters.failures += 1
        return result

    def close(self) -> None:
        """Close the connections."""
        self._target.close()

    def _acknowledge(self, batch: Batch) -> None:
        self._buffer.acknowledge(batch)
        self._backoff.reset()
        self._logged_at.pop("outage", None)
        self.counters.sent_points += batch.points

    def _send(self, payloads: Sequence[bytes]) -> SendResult:
        """Send payloads in one request, or in halves if that is too large."""
        url = self._access_points.current
        began = time.perf_counter()
        response = self._target.write(url, b"\n".join(payloads))
        if response.status in SUCCESS:
            self._access_points.record_success(url, time.perf_counter() - began)
            return SendResult(Outcome.SENT)
        if response.status in {400, 422} and not is_web_page(response.body):
            return self._handle_rejection(url, response, payloads)
        if response.status == 413:  # noqa: PLR2004 - see the table above
            return self._send_halves(payloads, reason="too large for the server")
        return self._retry_later(url, response)

    def _handle_rejection(
        self, url: str, response: WriteResponse, payloads: Sequence[bytes]
    ) -> SendResult:
        reason = error_message(response.body, default=response.reason)
        rejected = rejected_lines(response.body)
        if not rejected:
            self._bisections_left -= 1
            if self._bisections_left < 0:
                return self._give_up(_lines(payloads), reason=f"{url}: {reason}")
            return self._send_halves(payloads, reason=f"{url}: {reason}")
        if self._may_log("rejections"):
            log.error("%s rejected some lines: %s", url, reason)
        self._access_points.record_success(url)
        numbered = dict(_numbered_lines(b"\n".join(payloads)))
        for number, why in rejected.items():
            self._log_undeliverable([numbered.get(number, b"")], reason=why)
        return SendResult(Outcome.PARTLY_SENT)

    def _send_halves(self, payloads: Sequence[bytes], *, reason: str) -> SendResult:
        pieces = list(payloads) if len(payloads) > 1 else _lines(payloads)
        if len(pieces) == 1:
            return self._give_up(pieces, reason=reason)
        middle = len(pieces) // 2
        first = self._send(_joined(pieces[:middle], payloads))
        if first.outcome not in DELIVERED:
            return first
        second = self._send(_joined(pieces[middle:], payloads))
        return first if second.outcome is Outcome.SENT else second

    def _give_up(self, lines: Sequence[bytes], *, reason: str) -> SendResult:
        if self._may_log("rejections"):
            log.error("%d lines can't be delivered: %s", len(lines), reason)
        self._log_undeliverable(lines, reason=reason)
        return SendResult(Outcome.PARTLY_SENT)

    def _log_undeliverable(self, lines: Sequence[bytes], *, reason: str) -> None:
        self.counters.undeliverable_lines += sum(1 + line.count(b"\n") for line in lines)
        self._undeliverable.add(lines, reason=reason, rejected_at=self._clock())

    def _retry_later(self, url: str, response: WriteResponse) -> SendResult:
        """Log why a batch has to wait, and return how long."""
        reason = error_message(response.body, default=response.reason)
        may_try_soon = False
        if response.status in {502, 503, 504} or response.is_late:
            may_try_soon = self._access_points.record_unavailable(url)
        elif response.status != 429:  # noqa: PLR2004 - see the table above
            self._access_points.record_failure(url, reason)
        if response.status in {401, 403}:
            self._warn(
                f"{url} refuses this agent ({response.status}): {reason.rstrip('.')}. Samples stay "
                "in the buffer. Run vedette agent check."
            )
            is_refused = not self._access_points.has_healthy
            return SendResult(Outcome.REFUSED, self._backoff.next_seconds(is_refused=is_refused))
        if response.status == NO_RESPONSE:
            self._warn(f"{url} does not answer: {response.reason}. Samples stay in the buffer.")
        elif is_web_page(response.body) and response.status not in {429, 502, 503, 504}:
            self._warn(
                f"{url}: a server in front of it answered {response.status}: {reason}. Samples "
                "stay in the buffer. Check the address, client_certificate_file and "
                "client_key_file."
            )
        else:
            self._warn(f"{url} answered {response.status}: {reason}. Samples stay in the buffer.")
        has_left = response.status == NO_RESPONSE and self._access_points.current != url
        if has_left and self._access_points.has_healthy:
            return SendResult(Outcome.FAILED)  # the next address, at once
        at_least = None
        if not may_try_soon:
            at_least = retry_after_seconds(response.retry_after, now=self._clock())
        return SendResult(Outcome.FAILED, self._backoff.next_seconds(at_least=at_least))

    def _warn(self, message: str) -> None:
        """Log at once, then at most once a minute until something is delivered."""
        if self._may_log("outage"):
            log.warning(message)

    def _may_log(self, subject: str) -> bool:
        """Return whether a subject was not logged within a minute; note that it is now."""
        now, last = self._clock().timestamp(), self._logged_at.get(subject)
        is_due = last is None or not 0 <= now - last < LOG_INTERVAL_SECONDS  # the clock may be set
        if is_due:
            self._logged_at[subject] = now
        return is_due


def _numbered_lines(lines: bytes) -> list[tuple[int, bytes]]:
    text = lines.decode(errors="surrogateescape")
    return [(number, line.encode(errors="surrogateescape")) for number, line in logical_lines(text)]


def _lines(payloads: Sequence[bytes]) -> list[bytes]:
    return [line for _, line in _numbered_lines(b"\n".join(payloads))]


def _joined(pieces: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
    """Return frames unchanged, and the lines of a single frame as one payload."""
    return list(pieces) if len(payloads) > 1 else [b"\n".join(pieces)]

"""The sender: sends batches from the buffer to the write target.

The response decides what happens to a batch:

    2xx                       acknowledge it: the samples are durable
    400, 422                  the good lines were stored: log the others and acknowledge the batch
    413                       send it in halves, down to single lines
    401, 403                  keep it and log a warning; try the next address
    429                       keep it and wait
    502, 503, 504, late       keep it and retry later, elsewhere if `/health` isn't answered either
    500 and others            keep it and retry later; after some failures send it in halves, so
                              that lines that the server fails on don't hold up the others
    no response               keep it and retry later, at the next address if there is one

If a server rejects a batch without naming lines, the sender bisects it, up to a number of requests.
A batch that it fails on is bisected in the same way. Lines count as the cause only if the server
has stored others meanwhile: one that fails on everything gets the batch again.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from collector.buffering.buffer import BATCH_POINTS, Batch, DiskBuffer
from collector.buffering.undeliverable import UndeliverableLines, numbered_lines, rejected_lines
from collector.periodic_task import Backoff
from collector.sending.access_points import AccessPoints
from collector.sending.http import (
    error_message,
    is_web_page,
    retry_after_seconds,
)
from collector.sending.write_targets import NO_RESPONSE, WriteResponse, WriteTarget
from core.clock import Clock

log = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 60.0
MAX_BISECTIONS = 32
# Of a batch that the server fails on, before and after it has stored a part of it.
MAX_FIRST_PARTS, MAX_PARTS = 16, 512
# So many failures until a batch is sent in parts: meanwhile the server may be mended.
FAILURES_PER_BISECTION = 8
SUCCESS = range(200, 300)
# The server or a proxy says that it can't answer now, which has nothing to do with the batch.
NOT_NOW = frozenset({502, 503, 504})


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
        # Answers by which the server failed, since it stored something or was sent parts.
        self._server_failures = 0
        # Of the batch under way: whether failures bisect it, and a part of it is stored.
        self._is_bisecting = self._is_partly_stored = False
        self._given_up: list[tuple[Sequence[bytes], str]] = []
        self.counters = SenderCounters()

    def send_next(self) -> SendResult:
        """Send the next batch; the buffer keeps it until it is delivered.

        Call `DiskBuffer.wait_for_frames` first, which blocks until there is something to send.
        """
        batch = self._buffer.read(max_points=BATCH_POINTS)
        if batch is None:
            return SendResult(Outcome.NOTHING)
        self._begin_batch()
        result = self._send([frame.payload for frame in batch.frames])
        if result.outcome in DELIVERED and self._is_bisecting and not self._is_partly_stored:
            result = SendResult(Outcome.FAILED, self._backoff.next_seconds())
        if result.outcome in DELIVERED:
            self._acknowledge(batch)
        else:
            self.counters.failures += 1
        return result

    def close(self) -> None:
        """Close the connections."""
        self._target.close()

    def _begin_batch(self) -> None:
        self._is_bisecting = self._server_failures >= FAILURES_PER_BISECTION
        if self._is_bisecting:
            self._server_failures = 0
        self._bisections_left = MAX_FIRST_PARTS if self._is_bisecting else MAX_BISECTIONS
        self._is_partly_stored = False
        self._given_up = []

    def _acknowledge(self, batch: Batch) -> None:
        for lines, reason in self._given_up:
            self._set_aside(lines, reason=reason)
        self._buffer.acknowledge(batch)
        self._backoff.reset()
        self._server_failures = 0
        self._logged_at.pop("outage", None)
        self.counters.sent_points += batch.points

    def _send(self, payloads: Sequence[bytes]) -> SendResult:
        """Send payloads in one request, or in halves if that is too large."""
        url = self._access_points.current
        began = time.perf_counter()
        response = self._target.write(url, b"\n".join(payloads))
        if response.status in SUCCESS:
            self._access_points.record_success(url, time.perf_counter() - began)
            self._note_stored()
            return SendResult(Outcome.SENT)
        if response.status in {400, 422} and not is_web_page(response.body):
            return self._handle_rejection(url, response, payloads)
        if response.status == 413:  # noqa: PLR2004 - see the table above
            return self._send_halves(payloads, reason="too large for the server")
        if response.status >= 500 and response.status not in NOT_NOW:  # noqa: PLR2004
            if self._is_bisecting:
                return self._bisect(url, response, payloads)
            self._server_failures += 1
        return self._retry_later(url, response)

    def _note_stored(self) -> None:
        if self._is_bisecting and not self._is_partly_stored:
            self._bisections_left = MAX_PARTS
        self._is_partly_stored = True

    def _bisect(self, url: str, response: WriteResponse, payloads: Sequence[bytes]) -> SendResult:
        """Send payloads in halves that the server can't store as a whole; give up single lines."""
        reason = f"{url}: {error_message(response.body, default=response.reason)}"
        self._bisections_left -= 1
        if self._bisections_left >= 0:
            return self._send_halves(payloads, reason=reason)
        if self._is_bisecting and not self._is_partly_stored:
            return self._retry_later(url, response)  # it fails on everything
        return self._give_up(_lines(payloads), reason=reason)

    def _handle_rejection(
        self, url: str, response: WriteResponse, payloads: Sequence[bytes]
    ) -> SendResult:
        reason = error_message(response.body, default=response.reason)
        rejected = rejected_lines(response.body)
        if not rejected:
            return self._bisect(url, response, payloads)
        if self._may_log("rejections"):
            log.error("%s rejected some lines: %s", url, reason)
        self._access_points.record_success(url)
        self._note_stored()
        numbered = dict(numbered_lines(b"\n".join(payloads)))
        self._given_up += [([numbered.get(number, b"")], why) for number, why in rejected.items()]
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
        self._given_up.append((lines, reason))
        return SendResult(Outcome.PARTLY_SENT)

    def _set_aside(self, lines: Sequence[bytes], *, reason: str) -> None:
        self.counters.undeliverable_lines += sum(1 + line.count(b"\n") for line in lines)
        try:
            self._undeliverable.add(lines, reason=reason, rejected_at=self._clock())
        except OSError as error:
            log.warning("can't write rejected lines, they are lost: %s", error)

    def _retry_later(self, url: str, response: WriteResponse) -> SendResult:
        """Log why a batch has to wait, and return how long."""
        reason = error_message(response.body, default=response.reason)
        may_try_soon = False
        if response.status in NOT_NOW or response.is_late:
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


def _lines(payloads: Sequence[bytes]) -> list[bytes]:
    return [line for _, line in numbered_lines(b"\n".join(payloads))]


def _joined(pieces: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
    """Return frames unchanged, and the lines of a single frame as one payload."""
    return list(pieces) if len(payloads) > 1 else [b"\n".join(pieces)]

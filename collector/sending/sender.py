"""The sender: takes batches from the buffer and pushes them through the write endpoint.

What the server's answer does to the batch:

    2xx                     it is durable there: let go
    400, 422                the good lines were kept: put the others aside, let go
    413                     send it in halves, down to single lines
    401, 403                keep it, and say so, for somebody must act; ask the next address too
    429, 503, no answer     keep it, try again later, at the next address when there is one

A server that refuses without saying which lines is asked with ever smaller parts until they are
found, or until that has taken too many requests; halves of what is too large do not count. The
client of InfluxDB is used call by call, its own batching and retries off: they lose samples.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from collector.backoff import Backoff
from collector.buffering.buffer import BATCH_POINTS, Batch, DiskBuffer
from collector.sending.addresses import PortalAddresses
from collector.sending.answers import is_web_page, named_lines, retry_after_seconds, sentence_of
from collector.sending.targets import NO_ANSWER, Answer, WriteTarget
from collector.sending.undeliverable import UndeliverableLines
from core.clock import Clock
from timeseries.lineprotocol_grammar import logical_lines

log = logging.getLogger(__name__)

COMPLAIN_EVERY_SECONDS = 60.0
MOST_SEARCHES = 32
SUCCESS = range(200, 300)


class Outcome(StrEnum):
    """What became of a batch."""

    NOTHING = "nothing"
    SENT = "sent"
    SENT_IN_PART = "sent_in_part"
    REFUSED = "refused"
    FAILED = "failed"


ARRIVED = frozenset({Outcome.SENT, Outcome.SENT_IN_PART})


@dataclass(frozen=True, slots=True)
class SendResult:
    """What happened, and how long to wait before the next try."""

    outcome: Outcome
    wait_seconds: float = 0.0


@dataclass(slots=True)
class SenderCounters:
    """What the sender has done since it started."""

    sent_points: int = 0
    failures: int = 0
    undeliverable_lines: int = 0


class Sender:
    """Drains the buffer to the server. For one thread.

    Args:
        buffer: what is to be sent.
        addresses: the access points.
        target: how to write to one.
        clock: the time.
        undeliverable: keeps lines that are refused for ever.
        random: jitter of the waits.
    """

    def __init__(
        self,
        buffer: DiskBuffer,
        addresses: PortalAddresses,
        target: WriteTarget,
        *,
        clock: Clock,
        undeliverable: UndeliverableLines,
        random: Random | None = None,
    ) -> None:
        self._buffer = buffer
        self._addresses = addresses
        self._target = target
        self._clock = clock
        self._undeliverable = undeliverable
        self._backoff = Backoff(random=random)
        self._complained_at: float | None = None
        self._searches_left = MOST_SEARCHES
        self.counters = SenderCounters()

    def send_next(self) -> SendResult:
        """Send the next batch; the buffer lets go of it only when it has arrived.

        Call `DiskBuffer.wait_for_frames` before, which wakes when there is something to send.
        """
        batch = self._buffer.read(max_points=BATCH_POINTS)
        if batch is None:
            return SendResult(Outcome.NOTHING)
        self._searches_left = MOST_SEARCHES
        result = self._deliver([frame.payload for frame in batch.frames])
        if result.outcome in ARRIVED:
            self._arrived(batch)
        else:
            self.counters.failures += 1
        return result

    def close(self) -> None:
        """Close the connections."""
        self._target.close()

    def _arrived(self, batch: Batch) -> None:
        self._buffer.acknowledge(batch)
        self._backoff.reset()
        self._complained_at = None
        self.counters.sent_points += batch.points

    def _deliver(self, payloads: Sequence[bytes]) -> SendResult:
        """Push payloads in one request, or in halves where that is too much at once."""
        url = self._addresses.current
        lines = b"\n".join(payloads)
        began = time.perf_counter()
        answer = self._target.write(url, lines)
        if answer.status in SUCCESS:
            self._addresses.mark_answered(url, time.perf_counter() - began)
            return SendResult(Outcome.SENT)
        if answer.status in {400, 422} and not is_web_page(answer.body):
            return self._refused_lines(url, answer, payloads)
        if answer.status == 413:  # noqa: PLR2004 - see the table above
            return self._in_halves(payloads, reason="too large for the server")
        return self._kept(url, answer)

    def _refused_lines(self, url: str, answer: Answer, payloads: Sequence[bytes]) -> SendResult:
        """Put lines aside that the server will never take."""
        reason = sentence_of(answer.body, otherwise=answer.reason)
        named = named_lines(answer.body)
        if not named:
            return self._search(payloads, reason=f"{url}: {reason}")
        log.error("%s kept the good lines only: %s", url, reason)
        self._addresses.mark_answered(url)
        numbered = dict(_numbered_lines(b"\n".join(payloads)))
        for number, why in named.items():
            self._put_aside([numbered.get(number, b"")], reason=why)
        return SendResult(Outcome.SENT_IN_PART)

    def _search(self, payloads: Sequence[bytes], *, reason: str) -> SendResult:
        """Look for the bad lines in ever smaller parts, as long as there are requests left."""
        self._searches_left -= 1
        if self._searches_left < 0:
            return self._give_up(_lines_of(payloads), reason=reason)
        return self._in_halves(payloads, reason=reason)

    def _in_halves(self, payloads: Sequence[bytes], *, reason: str) -> SendResult:
        pieces = list(payloads) if len(payloads) > 1 else _lines_of(payloads)
        if len(pieces) == 1:
            return self._give_up(pieces, reason=reason)
        middle = len(pieces) // 2
        first = self._deliver(_rejoined(pieces[:middle], payloads))
        if first.outcome not in ARRIVED:
            return first
        second = self._deliver(_rejoined(pieces[middle:], payloads))
        return first if second.outcome is Outcome.SENT else second

    def _give_up(self, lines: Sequence[bytes], *, reason: str) -> SendResult:
        log.error("%d lines can't be delivered: %s", len(lines), reason)
        self._put_aside(lines, reason=reason)
        return SendResult(Outcome.SENT_IN_PART)

    def _put_aside(self, lines: Sequence[bytes], *, reason: str) -> None:
        self.counters.undeliverable_lines += sum(1 + line.count(b"\n") for line in lines)
        self._undeliverable.add(lines, reason=reason, refused_at=self._clock())

    def _kept(self, url: str, answer: Answer) -> SendResult:
        """Say why a batch has to wait, and for how long."""
        sentence = sentence_of(answer.body, otherwise=answer.reason)
        if answer.status in {401, 403}:
            said = f"{url} refuses this agent ({answer.status}): {sentence.rstrip('.')}."
            self._complain(f"{said} Samples are kept. See what vedette agent check says.")
            self._addresses.mark_failed(url)
            is_refused = not self._addresses.has_healthy
            return SendResult(Outcome.REFUSED, self._backoff.next_seconds(is_refused=is_refused))
        self._addresses.mark_failed(url)
        if answer.status == NO_ANSWER:
            self._complain(f"{url} does not answer: {answer.reason}. Samples are kept.")
        elif is_web_page(answer.body) and answer.status not in {429, 502, 503, 504}:
            self._complain(
                f"{url}: a server in front of it answered {answer.status}: {sentence}. Samples are "
                "kept. Check the address, client_certificate_file and client_key_file."
            )
        else:
            self._complain(f"{url} answered {answer.status}: {sentence}. Samples are kept.")
        return SendResult(Outcome.FAILED, self._wait_seconds(answer))

    def _wait_seconds(self, answer: Answer) -> float:
        """Return how long to wait: as asked for, or shortly when another address can be tried."""
        asked = retry_after_seconds(answer.retry_after, now=self._clock())
        if answer.status == 503 and self._addresses.has_healthy:  # noqa: PLR2004 - see above
            asked = None
        return self._backoff.next_seconds(at_least=asked)

    def _complain(self, message: str) -> None:
        """Log at once, then no more than once a minute until something was sent."""
        now = self._clock().timestamp()
        last = self._complained_at
        if last is None or not 0 <= now - last < COMPLAIN_EVERY_SECONDS:  # the clock may be set
            self._complained_at = now
            log.warning(message)


def _numbered_lines(lines: bytes) -> list[tuple[int, bytes]]:
    text = lines.decode(errors="surrogateescape")
    return [(number, line.encode(errors="surrogateescape")) for number, line in logical_lines(text)]


def _lines_of(payloads: Sequence[bytes]) -> list[bytes]:
    return [line for _, line in _numbered_lines(b"\n".join(payloads))]


def _rejoined(pieces: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
    """Return frames as they are, and the lines of a single frame joined again."""
    return list(pieces) if len(payloads) > 1 else [b"\n".join(pieces)]

"""The sender: takes the oldest batch from the buffer and pushes it through the write endpoint.

What the portal's answer does to the batch:

    2xx                     it is durable there: let go
    400, 422                the good lines were kept: log which were not, let go
    413                     send it in halves
    401, 403                keep it, and say so, for somebody must act
    429, 503, no answer     keep it, try again later, at the next address when there is one

The client of InfluxDB is used call by call, its own batching and retries off: they lose samples.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import urllib3
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.domain.write_precision import WritePrecision
from influxdb_client.rest import ApiException

from collector.addresses import PortalAddresses
from collector.backoff import Backoff
from collector.buffer import BATCH_POINTS, Batch, DiskBuffer
from collector.link import retry_after_seconds, root_cause
from core.clock import Clock

log = logging.getLogger(__name__)

BUCKET = "vedette"
ORGANISATION = "vedette"
IDLE_SECONDS = 1.0
COMPLAIN_EVERY_SECONDS = 60.0


class Outcome(StrEnum):
    """What became of a batch."""

    NOTHING = "nothing"
    SENT = "sent"
    SENT_IN_PART = "sent_in_part"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    FAILED = "failed"


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
    """Drains the buffer to the portal, oldest first. For one thread."""

    def __init__(
        self,
        buffer: DiskBuffer,
        addresses: PortalAddresses,
        *,
        agent_token: str,
        clock: Clock,
        timeout_seconds: float = 10.0,
        random: Random | None = None,
    ) -> None:
        self._buffer = buffer
        self._addresses = addresses
        self._token = agent_token
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._backoff = Backoff(random=random)
        self._client: Any = None
        self._client_url = ""
        self._complained_at: float | None = None
        self.counters = SenderCounters()

    def send_next(self) -> SendResult:
        """Send the oldest batch; the buffer lets go of it only when it has arrived."""
        batch = self._buffer.read(max_points=BATCH_POINTS)
        if batch is None:
            return SendResult(Outcome.NOTHING, IDLE_SECONDS)
        result = self._deliver([frame.payload for frame in batch.frames])
        if result.outcome in {Outcome.SENT, Outcome.SENT_IN_PART}:
            self._arrived(batch)
        else:
            self.counters.failures += 1
        return result

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _arrived(self, batch: Batch) -> None:
        self._buffer.acknowledge(batch)
        self._backoff.reset()
        self._complained_at = None
        self.counters.sent_points += batch.points

    def _deliver(self, payloads: Sequence[bytes]) -> SendResult:
        """Push payloads in one request, or in halves where that is too much at once."""
        result = self._post(b"\n".join(payloads))
        if result.outcome is not Outcome.TOO_LARGE:
            return result
        pieces = list(payloads) if len(payloads) > 1 else payloads[0].split(b"\n")
        if len(pieces) == 1:
            self.counters.undeliverable_lines += 1
            log.error("dropped a line of %d bytes that the portal finds too large", len(pieces[0]))
            return SendResult(Outcome.SENT_IN_PART)
        middle = len(pieces) // 2
        first = self._deliver(_rejoined(pieces[:middle], payloads))
        if first.outcome not in {Outcome.SENT, Outcome.SENT_IN_PART}:
            return first
        second = self._deliver(_rejoined(pieces[middle:], payloads))
        return first if second.outcome is Outcome.SENT else second

    def _post(self, lines: bytes) -> SendResult:
        url = self._addresses.current
        try:
            self._write_api(url).write(
                bucket=BUCKET, org=ORGANISATION, record=lines, write_precision=WritePrecision.NS
            )
        except ApiException as error:
            return self._answered(error, url)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._addresses.mark_failed(url)
            return self._failed(f"{url} does not answer: {root_cause(error)}")
        return SendResult(Outcome.SENT)

    def _answered(self, error: Any, url: str) -> SendResult:  # noqa: ANN401 - an untyped exception
        status, sentence = error.status or 0, str(error.message or error.reason)
        match status:
            case 400 | 422:
                self.counters.undeliverable_lines += 1
                log.error("%s kept the good lines only: %s", url, sentence)
                return SendResult(Outcome.SENT_IN_PART)
            case 413:
                return SendResult(Outcome.TOO_LARGE)
            case 401 | 403:
                advice = "Samples are kept. Check the identity of this appliance, or enrol it again"
                self._complain(f"{url} refuses this agent ({status}): {sentence}. {advice}.")
                return SendResult(Outcome.REFUSED, self._backoff.next_seconds())
            case 0:  # TLS
                self._addresses.mark_failed(url)
        asked = retry_after_seconds(error.retry_after)
        return self._failed(f"{url} answered {status}: {sentence}", at_least_seconds=asked)

    def _failed(self, message: str, *, at_least_seconds: float | None = None) -> SendResult:
        self._complain(f"{message}. Samples are kept.")
        return SendResult(Outcome.FAILED, self._backoff.next_seconds(at_least=at_least_seconds))

    def _complain(self, message: str) -> None:
        """Log at once, then no more than once a minute until something was sent."""
        now = self._clock().timestamp()
        if self._complained_at is None or now - self._complained_at >= COMPLAIN_EVERY_SECONDS:
            self._complained_at = now
            log.warning(message)

    def _write_api(self, url: str) -> Any:  # noqa: ANN401 - the client has no types
        if self._client is None or self._client_url != url:
            self.close()
            self._client_url = url
            self._client = InfluxDBClient(
                url=url,
                token=self._token,
                org=ORGANISATION,
                timeout=int(self._timeout_seconds * 1000),
                enable_gzip=True,
                retries=False,
            )
        return self._client.write_api(write_options=SYNCHRONOUS)


def _rejoined(pieces: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
    """Return frames as they are, and the lines of a single frame joined again."""
    return list(pieces) if len(payloads) > 1 else [b"\n".join(pieces)]

"""Sends the buffer's samples onward by remote_write, in the order in which they were written.

The response decides what happens to a batch:

    2xx                            go on: the samples are stored
    401, 403, 404, 408, 425, 429,
    3xx, 5xx, no response          keep it and retry later, after Retry-After if there is one
    413                            send it in halves
    any other 4xx                  give it up, and count its samples: it would be refused again

Nothing here holds up the portal, which has its own thread and its own position in the buffer.
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from random import Random

from urllib3 import BaseHTTPResponse

from collector.buffering.buffer import DiskBuffer
from collector.buffering.follower import FollowedFrames
from collector.periodic_task import Backoff
from collector.remote_write.credentials import CredentialsError, authorization
from collector.remote_write.encoding import Series, SeriesBuilder, write_request
from collector.remote_write.settings import RemoteWriteSettings
from collector.sending.http import (
    HTTP_ERRORS,
    HTTPClient,
    error_message,
    retry_after_seconds,
    root_cause,
)
from collector.tls import TLSContexts
from core.clock import NS_PER_SECOND, Clock, to_ns
from timeseries.lineprotocol.parser import parse

log = logging.getLogger(__name__)

BATCH_POINTS = 2_000
WAIT_FOR_FRAMES_SECONDS = 60.0
LOG_INTERVAL_SECONDS = 60.0
_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": "vedette-agent",
}
_RETRIED = frozenset({401, 403, 404, 408, 425, 429})
_APPLIANCE_LABEL = "appliance"


class RemoteWriter:
    """Follows the buffer. For one thread, beside which `metrics` may be called.

    Args:
        settings: where to write.
        buffer: one that is followed.
        appliance: the label `appliance`, unless the settings have one.
        clock: the time.
        environ: names proxies.
        random: jitter of retries.
    """

    def __init__(
        self,
        settings: RemoteWriteSettings,
        buffer: DiskBuffer,
        *,
        appliance: str,
        clock: Clock,
        environ: Mapping[str, str],
        random: Random | None = None,
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._clock = clock
        self._http = HTTPClient(TLSContexts(settings.tls_files), environ=environ)
        labels = {_APPLIANCE_LABEL: appliance, **settings.external_labels}
        self._builder = SeriesBuilder(labels, settings.relabel)
        self._backoff = Backoff(random=random)
        self._logged_at: dict[str, float] = {}
        self._credentials_error = ""
        self._pending_ns: int | None = None
        self._sent_samples = 0
        self._rejected_samples = 0
        self._failures = 0

    def step(self) -> float:
        """Wait for samples, and send the next batch; return the seconds to wait before the next."""
        if not self._buffer.wait_to_follow(WAIT_FOR_FRAMES_SECONDS):
            return 0.0
        return self.send_next()

    def send_next(self) -> float:
        """Send the next batch, if there is one; return the seconds to wait before the next."""
        followed = self._buffer.follow(max_points=BATCH_POINTS)
        if followed is None:
            self._pending_ns = None
            return 0.0
        self._pending_ns = followed.frames[0].time_ns
        wait_seconds = self._send(self._series_of(followed))
        if wait_seconds is not None:
            self._failures += 1
            return wait_seconds
        self._buffer.advance(followed)
        self._backoff.reset()
        self._pending_ns = None
        return 0.0

    def metrics(self) -> dict[str, float | int | None]:
        """Return the agent's own metrics of this."""
        pending_ns = self._pending_ns
        lag_ns = 0 if pending_ns is None else to_ns(self._clock()) - pending_ns
        return {
            "remote_write_lag_seconds": max(0.0, lag_ns / NS_PER_SECOND),
            "remote_write_sent_samples": self._sent_samples,
            "remote_write_rejected_samples": self._rejected_samples,
            "remote_write_failures": self._failures,
            "remote_write_dropped_points": self._buffer.losses.unfollowed_points,
        }

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _series_of(self, followed: FollowedFrames) -> list[Series]:
        lines = b"\n".join(frame.payload for frame in followed.frames)
        parsed = parse(lines, default_time_ns=to_ns(self._clock()))
        return self._builder.series_of(parsed.batch.blocks)

    def _send(self, series: Sequence[Series]) -> float | None:
        """Send series; return None if that is done with, otherwise the seconds to wait."""
        if not series:
            return None
        try:
            response = post(self._http, self._settings, write_request(series))
        except (CredentialsError, *HTTP_ERRORS) as error:
            return self._not_sent(error)
        self._credentials_error = ""
        status = response.status
        reason = error_message(response.data, default=response.reason or "")
        samples = sum(len(own.samples) for own in series)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            self._sent_samples += samples
            return None
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and len(series) > 1:
            middle = len(series) // 2
            first = self._send(series[:middle])
            return self._send(series[middle:]) if first is None else first
        said = f"{self._settings.url} answered {status}: {reason.rstrip('.')}"
        if status not in _RETRIED and HTTPStatus.BAD_REQUEST <= status < 500:  # noqa: PLR2004
            self._rejected_samples += samples
            self._warn("rejections", f"{said}. {samples} samples are not sent again.")
            return None
        header = response.headers.get("Retry-After")
        return self._retry_later(said, at_least=retry_after_seconds(header, now=self._clock()))

    def _not_sent(self, error: Exception) -> float:
        """Log why there is no answer: once if somebody has to correct a file first."""
        if not isinstance(error, CredentialsError):
            return self._retry_later(f"{self._settings.url} does not answer: {root_cause(error)}")
        said = error.message
        if said != self._credentials_error:
            self._credentials_error = said
            log.warning(
                "remote_write: %s. Samples stay in the buffer until the file is corrected.", said
            )
        return self._backoff.next_seconds()

    def _retry_later(self, said: str, *, at_least: float | None = None) -> float:
        self._warn("outage", f"{said}. Samples stay in the buffer.")
        return self._backoff.next_seconds(at_least=at_least)

    def _warn(self, subject: str, message: str) -> None:
        """Log at once, then at most once a minute."""
        now, last = self._clock().timestamp(), self._logged_at.get(subject)
        if last is None or not 0 <= now - last < LOG_INTERVAL_SECONDS:  # the clock may be set
            self._logged_at[subject] = now
            log.warning("remote_write: %s", message)


def post(http: HTTPClient, settings: RemoteWriteSettings, body: bytes) -> BaseHTTPResponse:
    """Send the body of a request.

    Raises:
        CredentialsError: the file with the credentials can't be used.
        urllib3.exceptions.HTTPError, OSError: no response; see `HTTP_ERRORS`.
    """
    return http.request(
        "POST",
        settings.url,
        body=body,
        headers={**_HEADERS, **settings.headers, **authorization(settings)},
        timeout_seconds=settings.timeout_seconds,
    )

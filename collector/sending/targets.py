"""Where batches go: a target sends once and tells what was answered. Here is that of the portal."""

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from collector.sending.answers import root_cause
from collector.sending.connections import HTTPFailure, proxy_for, proxy_headers
from collector.sending.influx_client import InfluxWriteClient, WriteClientSettings
from collector.sending.tls import TLSContexts

PORTAL_BUCKET = "vedette"
COMPRESSION_LEVEL = 1
DURABLE = 204
NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said to a batch.

    Attributes:
        status: of HTTP; 0 when nobody answered.
        body: as it came.
        reason: in words, where the body does not say it.
        retry_after: the header, where there is one.
    """

    status: int
    body: bytes = b""
    reason: str = ""
    retry_after: str | None = None


class WriteTarget(Protocol):
    """Sends lines to one address. For one thread."""

    def write(self, url: str, lines: bytes) -> Answer:
        """Send lines of line protocol once; who does not answer is an `Answer` too."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class APITarget:
    """Writes through version 2 of InfluxDB's write API, as the portal takes it."""

    def __init__(
        self,
        *,
        token: str,
        bucket: str = PORTAL_BUCKET,
        organisation: str = PORTAL_BUCKET,
        tls: TLSContexts | None = None,
        timeout_seconds: float = 10.0,
        environ: Mapping[str, str] | None = None,
        is_token_needed: Callable[[str], bool] = lambda _url: True,
    ) -> None:
        self._is_token_needed = is_token_needed
        self._token = token
        self._bucket = bucket
        self._organisation = organisation
        self._tls = tls or TLSContexts()
        self._timeout_seconds = timeout_seconds
        self._environ = environ if environ is not None else {}
        self._client: InfluxWriteClient | None = None
        self._settings: WriteClientSettings | None = None

    def write(self, url: str, lines: bytes) -> Answer:
        """Send lines of line protocol once."""
        compressed = gzip.compress(lines, COMPRESSION_LEVEL)
        try:
            client = self._client_for(url)
        except OSError as error:
            return Answer(NO_ANSWER, reason=root_cause(error))
        try:
            client.write(compressed, bucket=self._bucket, organisation=self._organisation)
        except client.error as error:
            return _answer_of(error)
        except HTTPFailure as error:
            return Answer(NO_ANSWER, reason=root_cause(error))
        return Answer(DURABLE)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _client_for(self, url: str) -> InfluxWriteClient:
        """Return the client for an address, a new one when that or the certificate changed."""
        proxy = proxy_for(url, self._environ)
        settings = WriteClientSettings(
            url=url,
            authorization=self._authorization(url),
            timeout_seconds=self._timeout_seconds,
            tls=self._tls.current() if url.startswith("https:") else None,
            proxy=proxy,
            proxy_headers=proxy_headers(proxy) if proxy else None,
        )
        if self._client is None or settings != self._settings:
            self.close()
            self._client, self._settings = InfluxWriteClient(settings), settings
        return self._client

    def _authorization(self, url: str) -> str:
        return f"Token {self._token}" if self._token and self._is_token_needed(url) else ""


def _answer_of(error: Any) -> Answer:  # noqa: ANN401 - the client has no types
    status = error.status or NO_ANSWER
    if status == NO_ANSWER:  # TLS: "SSLError\n..."
        return Answer(NO_ANSWER, reason=root_cause(OSError(0, str(error.reason))))
    body = error.body.encode() if isinstance(error.body, str) else error.body or b""
    return Answer(status, body, str(error.reason or ""), error.retry_after)

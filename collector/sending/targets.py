"""Where batches go: the portal, or an InfluxDB. A target sends once and tells what was answered."""

import gzip
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from urllib3.util import make_headers

from collector.sending.answers import root_cause
from collector.sending.connections import Connections, HTTPFailure, proxy_for, proxy_headers
from collector.sending.influx_client import InfluxWriteClient, WriteClientSettings
from collector.sending.influxdb_settings import InfluxDBSettings
from collector.sending.tls import TLSContexts
from timeseries.lineprotocol import encode
from timeseries.lineprotocol_grammar import logical_lines
from timeseries.points import Point

log = logging.getLogger(__name__)

PORTAL_BUCKET = "vedette"
COMPRESSION_LEVEL = 1
DURABLE = 204
NO_ANSWER = 0
# The first version with the write API of version 2.
FIRST_WITH_V2 = (1, 8)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_HEAD = re.compile(rb"(?m)^(?:\\.|[^\\, \n])+")


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


class DatabaseTarget:
    """Writes to a database of InfluxDB before 1.8, which has no other write API."""

    def __init__(
        self, settings: InfluxDBSettings, connections: Connections, *, timeout_seconds: float
    ) -> None:
        query = {"db": settings.database, "precision": "ns"}
        if settings.retention_policy:
            query["rp"] = settings.retention_policy
        self._path = f"/write?{urlencode(query)}"
        self._headers = {"Content-Encoding": "gzip"}
        if settings.username:
            credentials = f"{settings.username}:{settings.read_password()}"
            self._headers |= make_headers(basic_auth=credentials)
        self._connections = connections
        self._timeout_seconds = timeout_seconds

    def write(self, url: str, lines: bytes) -> Answer:
        """Send lines of line protocol once."""
        try:
            response = self._connections.request(
                "POST",
                f"{url}{self._path}",
                body=gzip.compress(lines, COMPRESSION_LEVEL),
                headers=self._headers,
                timeout_seconds=(self._timeout_seconds, self._timeout_seconds),
            )
        except HTTPFailure as error:
            return Answer(NO_ANSWER, reason=root_cause(error))
        retry_after = response.headers.get("Retry-After")
        return Answer(response.status, response.data, response.reason or "", retry_after)

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()


class InfluxDBTarget:
    """Writes to an InfluxDB of any version: the first write asks which one it is.

    Args:
        settings: where to write.
        appliance: the tag by which samples of several appliances are told apart.
        tls: for https.
        timeout_seconds: how long an answer may take.
        environ: names proxies.
    """

    def __init__(
        self,
        settings: InfluxDBSettings,
        *,
        appliance: str,
        tls: TLSContexts | None = None,
        timeout_seconds: float = 10.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._tls = tls or TLSContexts()
        self._timeout_seconds = timeout_seconds
        self._environ = environ if environ is not None else {}
        self._stamp = line_stamper({"appliance": appliance, **settings.tags})
        self._target: WriteTarget | None = None

    def write(self, url: str, lines: bytes) -> Answer:
        """Send lines of line protocol once, stamped with the tags."""
        if self._target is None:
            try:
                self._target = self._choose(url)
            except HTTPFailure as error:
                return Answer(NO_ANSWER, reason=root_cause(error))
        return self._target.write(url, self._stamp(lines))

    def close(self) -> None:
        """Close the connection."""
        if self._target is not None:
            self._target.close()

    def _choose(self, url: str) -> WriteTarget:
        settings = self._settings
        connections = Connections(self._tls, environ=self._environ)
        timeouts = (self._timeout_seconds, self._timeout_seconds)
        response = connections.request("GET", f"{url}/ping", timeout_seconds=timeouts)
        version = response.headers.get("X-Influxdb-Version", "")
        if settings.database and _is_before_v2(version):
            log.info("%s is InfluxDB %s: writing to its database", url, version)
            return DatabaseTarget(settings, connections, timeout_seconds=self._timeout_seconds)
        connections.close()
        credentials = f"{settings.username}:{settings.read_password()}" if settings.username else ""
        return APITarget(
            token=settings.read_token() or credentials,
            bucket=settings.bucket or f"{settings.database}/{settings.retention_policy}",
            organisation=settings.org,
            tls=self._tls,
            timeout_seconds=self._timeout_seconds,
            environ=self._environ,
        )


def line_stamper(tags: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """Return what puts tags on every line; a raw newline in a string does not end a line.

    Raises:
        InvalidInputError: a tag can't be written as line protocol.
    """
    [line] = encode([Point("m", dict(tags), {"v": 1.0}, 0)]).splitlines()
    stamp = line.removeprefix(b"m").rpartition(b" v=")[0]
    by_head = rb"\g<0>" + stamp.replace(b"\\", rb"\\")

    def stamped(lines: bytes) -> bytes:
        if b'"' not in lines:
            return _HEAD.sub(by_head, lines)
        whole = (line for _, line in logical_lines(lines.decode(errors="surrogateescape")))
        return b"\n".join(
            _HEAD.sub(by_head, line.encode(errors="surrogateescape"), count=1) for line in whole
        )

    return stamped


def _is_before_v2(version: str) -> bool:
    """Return whether a server is InfluxDB before 1.8; one that tells no version is not."""
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) < FIRST_WITH_V2


def _answer_of(error: Any) -> Answer:  # noqa: ANN401 - the client has no types
    status = error.status or NO_ANSWER
    if status == NO_ANSWER:  # TLS: "SSLError\n..."
        return Answer(NO_ANSWER, reason=root_cause(OSError(0, str(error.reason))))
    body = error.body.encode() if isinstance(error.body, str) else error.body or b""
    return Answer(status, body, str(error.reason or ""), error.retry_after)

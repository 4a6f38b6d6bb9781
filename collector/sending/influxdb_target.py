"""An InfluxDB, or a server that takes its writes, in place of a portal."""

import gzip
import logging
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from urllib3.util import make_headers

from collector.configuring.influxdb_settings import InfluxDBSettings
from collector.sending.answers import root_cause
from collector.sending.connections import Connections, HTTPFailure
from collector.sending.targets import (
    COMPRESSION_LEVEL,
    NO_ANSWER,
    Answer,
    APITarget,
    WriteTarget,
)
from collector.sending.tls import TLSContexts
from timeseries.lineprotocol import encode
from timeseries.lineprotocol_grammar import logical_lines
from timeseries.points import Point

log = logging.getLogger(__name__)

NOT_UP = frozenset({429, 500, 502, 503, 504})
# The first version with the write API of version 2.
FIRST_WITH_V2 = (1, 8)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_HEAD = re.compile(rb"(?m)^(?:\\.|[^\\, \n])+")


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
                version = self._ask_version(url)
                if isinstance(version, Answer):
                    return version
                self._target = self._choose(url, version)
            except HTTPFailure as error:
                return Answer(NO_ANSWER, reason=root_cause(error))
        return self._target.write(url, self._stamp(lines))

    def close(self) -> None:
        """Close the connection."""
        if self._target is not None:
            self._target.close()

    def _ask_version(self, url: str) -> str | Answer:
        """Return the server's version, empty where it tells none; or that it is not up yet."""
        connections = Connections(self._tls, environ=self._environ)
        timeouts = (self._timeout_seconds, self._timeout_seconds)
        try:
            response = connections.request("GET", f"{url}/ping", timeout_seconds=timeouts)
        finally:
            connections.close()
        if response.status in NOT_UP:  # a proxy's word: who stands behind it is not known
            retry_after = response.headers.get("Retry-After")
            return Answer(response.status, response.data, response.reason or "", retry_after)
        return response.headers.get("X-Influxdb-Version", "")

    def _choose(self, url: str, version: str) -> WriteTarget:
        settings = self._settings
        if settings.database and _is_before_v2(version):
            log.info("%s is InfluxDB %s: writing to its database", url, version)
            connections = Connections(self._tls, environ=self._environ)
            return DatabaseTarget(settings, connections, timeout_seconds=self._timeout_seconds)
        credentials = f"{settings.username}:{settings.read_password()}" if settings.username else ""
        return APITarget(
            token=settings.read_token() or credentials,
            bucket=settings.bucket or f"{settings.database}/{settings.retention_policy}",
            organisation=settings.org,
            tls=self._tls,
            timeout_seconds=self._timeout_seconds,
            environ=self._environ,
        )


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

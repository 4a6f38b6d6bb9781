"""Write targets: a portal, or an InfluxDB in its place.

A target sends a batch once and returns the server's response. Retries are up to the sender: the
batching of influxdb-client is not used, because it keeps batches in memory only.
"""

import gzip
import importlib
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

import urllib3
from urllib3.util import make_headers

from collector.config import InfluxDBSettings
from collector.sending.access_points import AccessPoints
from collector.sending.http import (
    HTTP_ERRORS,
    HTTPClient,
    is_late,
    proxy_for,
    proxy_headers,
    root_cause,
)
from collector.tls import TLSContexts
from timeseries.lineprotocol.encode import encode
from timeseries.lineprotocol.grammar import logical_lines
from timeseries.points import Point

log = logging.getLogger(__name__)

PORTAL_PATH = "/api/v2/write?org=vedette&bucket=vedette&precision=ns"
COMPRESSION_LEVEL = 1
NO_RESPONSE = 0
SERVER_ERRORS = 500
UNAVAILABLE = frozenset({429, 500, 502, 503, 504})
# The first version with the v2 write API.
FIRST_WITH_V2 = (1, 8)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_MEASUREMENT = re.compile(rb"(?m)^(?:\\.|[^\\, \n])+")


class WriteResponse(NamedTuple):
    """A server's response to a batch.

    Attributes:
        status: of HTTP; 0 if there was no response.
        body: as received.
        reason: in words, where the body has none.
        retry_after: the header, if there is one.
        is_late: whether the server took too long to respond.
    """

    status: int
    body: bytes = b""
    reason: str = ""
    retry_after: str | None = None
    is_late: bool = False


class WriteTarget(Protocol):
    """Writes lines to one server. For one thread."""

    def write(self, url: str, lines: bytes) -> WriteResponse:
        """Send lines of line protocol once; no response is a `WriteResponse`, too."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class HTTPTarget:
    """Posts compressed lines: to a portal, or to an InfluxDB before 1.8.

    Args:
        path: with the query.
        headers: returns the credentials for an address.
        access_points: of the address; requests end when it is left.
        tls: for https.
        timeout_seconds: for a response.
        environ: names proxies.
    """

    def __init__(
        self,
        path: str,
        *,
        headers: Callable[[str], Mapping[str, str]],
        access_points: AccessPoints | None = None,
        tls: TLSContexts | None = None,
        timeout_seconds: float = 10.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        self._headers = headers
        self._access_points = access_points
        self._timeout_seconds = timeout_seconds
        self._http = HTTPClient(tls, environ=environ or {})

    def write(self, url: str, lines: bytes) -> WriteResponse:
        """Send lines of line protocol once."""
        points = self._access_points or AccessPoints([url])
        try:
            with points.under_way(url, self._http.abort) as request:
                response = self._http.request(
                    "POST",
                    f"{url}{self._path}",
                    body=gzip.compress(lines, COMPRESSION_LEVEL),
                    headers={"Content-Encoding": "gzip", **self._headers(url)},
                    timeout_seconds=self._timeout_seconds,
                    connect_timeout_seconds=points.connect_seconds(self._timeout_seconds),
                )
                request.is_answered = response.status < SERVER_ERRORS
        except HTTP_ERRORS as error:
            return WriteResponse(NO_RESPONSE, reason=root_cause(error), is_late=is_late(error))
        return _write_response(response)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def portal_target(
    token: str,
    *,
    is_token_needed: Callable[[str], bool] = lambda _url: True,
    access_points: AccessPoints | None = None,
    tls: TLSContexts | None = None,
    timeout_seconds: float = 10.0,
    environ: Mapping[str, str] | None = None,
) -> HTTPTarget:
    """Return the target for a portal, where the client certificate can replace the token."""
    proof = {"Authorization": f"Token {token}"} if token else {}
    return HTTPTarget(
        PORTAL_PATH,
        headers=lambda url: proof if is_token_needed(url) else {},
        access_points=access_points,
        tls=tls,
        timeout_seconds=timeout_seconds,
        environ=environ,
    )


class InfluxDBTarget:
    """Writes to an InfluxDB of any version; the first write detects which one it is.

    Args:
        settings: where to write.
        appliance: added to all lines as a tag.
        tls: for https.
        timeout_seconds: for a response.
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
        self._environ = environ or {}
        self._add_tags = line_tagger({"appliance": appliance, **settings.tags})
        self._target: WriteTarget | None = None

    def write(self, url: str, lines: bytes) -> WriteResponse:
        """Send lines of line protocol once, with the tags added."""
        if self._target is None:
            try:
                version = self._detect_version(url)
                if isinstance(version, WriteResponse):
                    return version
                self._target = self._target_for(url, version)
            except HTTP_ERRORS as error:
                return WriteResponse(NO_RESPONSE, reason=root_cause(error))
        return self._target.write(url, self._add_tags(lines))

    def close(self) -> None:
        """Close the connections."""
        if self._target is not None:
            self._target.close()

    def _detect_version(self, url: str) -> str | WriteResponse:
        """Return the server's version, "" if unknown; or its response while it is unavailable."""
        with closing(HTTPClient(self._tls, environ=self._environ)) as http:
            response = http.request("GET", f"{url}/ping", timeout_seconds=self._timeout_seconds)
        if response.status in UNAVAILABLE:  # perhaps a proxy's response
            return _write_response(response)
        return response.headers.get("X-Influxdb-Version", "")

    def _target_for(self, url: str, version: str) -> WriteTarget:
        settings = self._settings
        credentials = f"{settings.username}:{settings.read_password()}" if settings.username else ""
        match = _VERSION.match(version)
        is_before_v2 = match is not None and (int(match[1]), int(match[2])) < FIRST_WITH_V2
        if settings.database and is_before_v2:
            log.info("%s is InfluxDB %s: using the v1 write API", url, version)
            query = {"db": settings.database, "precision": "ns"}
            if settings.retention_policy:
                query["rp"] = settings.retention_policy
            proof = make_headers(basic_auth=credentials) if credentials else {}
            return HTTPTarget(
                f"/write?{urlencode(query)}",
                headers=lambda _url: proof,
                tls=self._tls,
                timeout_seconds=self._timeout_seconds,
                environ=self._environ,
            )
        return InfluxDBClientTarget(
            token=settings.read_token() or credentials,
            bucket=settings.bucket or f"{settings.database}/{settings.retention_policy}",
            organization=settings.org,
            tls=self._tls,
            timeout_seconds=self._timeout_seconds,
            environ=self._environ,
        )


class InfluxDBClientTarget:
    """Writes with the v2 write API, by one synchronous call of influxdb-client."""

    def __init__(
        self,
        *,
        token: str,
        bucket: str,
        organization: str,
        tls: TLSContexts,
        timeout_seconds: float,
        environ: Mapping[str, str],
    ) -> None:
        self._token = token
        self._bucket = bucket
        self._organization = organization
        self._tls = tls
        self._timeout_seconds = timeout_seconds
        self._environ = environ
        # Imported here: agents with a portal don't need it, and it takes memory.
        self._package: Any = importlib.import_module("influxdb_client")
        self._client: Any = None
        self._context: object = None

    def write(self, url: str, lines: bytes) -> WriteResponse:
        """Send lines of line protocol once."""
        try:
            service = self._package.WriteService(self._client_for(url).api_client)
            service.post_write(
                org=self._organization,
                bucket=self._bucket,
                body=gzip.compress(lines, COMPRESSION_LEVEL),
                precision="ns",
                content_encoding="gzip",
                content_type="text/plain; charset=utf-8",
            )
        except self._package.rest.ApiException as error:
            return _response_of(error)
        except HTTP_ERRORS as error:
            return WriteResponse(NO_RESPONSE, reason=root_cause(error))
        return WriteResponse(204)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _client_for(self, url: str) -> Any:  # noqa: ANN401 - the package has no types
        """Return the client, a new one after the client certificate has changed."""
        context = self._tls.current() if url.startswith("https:") else None
        if self._client is None or context is not self._context:
            self.close()
            proxy = proxy_for(url, self._environ)
            self._context = context
            self._client = self._package.InfluxDBClient(
                url=url,
                token=self._token or None,
                timeout=int(self._timeout_seconds * 1000),
                ssl_context=context,
                proxy=proxy,
                proxy_headers=proxy_headers(proxy) if proxy else None,
                connection_pool_maxsize=1,
            )
        return self._client


def line_tagger(tags: Mapping[str, str]) -> Callable[[bytes], bytes]:
    r"""Return a function that adds tags to lines; a \n within a string doesn't end a line.

    Raises:
        InvalidInputError: a tag can't be written as line protocol.
    """
    [line] = encode([Point("m", dict(tags), {"v": 1.0}, 0)]).splitlines()
    suffix = line.removeprefix(b"m").rpartition(b" v=")[0]
    with_tags = rb"\g<0>" + suffix.replace(b"\\", rb"\\")

    def add_tags(lines: bytes) -> bytes:
        if b'"' not in lines:
            return _MEASUREMENT.sub(with_tags, lines)
        complete_lines = (line for _, line in logical_lines(lines.decode(errors="surrogateescape")))
        return b"\n".join(
            _MEASUREMENT.sub(with_tags, line.encode(errors="surrogateescape"), count=1)
            for line in complete_lines
        )

    return add_tags


def _write_response(response: urllib3.BaseHTTPResponse) -> WriteResponse:
    retry_after = response.headers.get("Retry-After")
    return WriteResponse(response.status, response.data, response.reason or "", retry_after)


def _response_of(error: Any) -> WriteResponse:  # noqa: ANN401 - the package has no types
    status = error.status or NO_RESPONSE
    if status == NO_RESPONSE:  # TLS: "SSLError\n..."
        return WriteResponse(NO_RESPONSE, reason=root_cause(OSError(0, str(error.reason))))
    body = error.body.encode() if isinstance(error.body, str) else error.body or b""
    retry_after = (error.headers or {}).get("Retry-After")
    return WriteResponse(status, body, str(error.reason or ""), retry_after)

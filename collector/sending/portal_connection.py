"""A client of the agent API: HTTP to the access point in use, with failover to the others."""

import gzip
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3

from collector.certificates import AgentCertificate
from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.sending.access_points import AccessPoints
from collector.sending.http import (
    HTTP_ERRORS,
    HTTPClient,
    error_message,
    is_late,
    is_web_page,
    retry_after_seconds,
    root_cause,
)
from collector.tls import TLSContexts
from core.clock import Clock, utc_now
from jobqueue.executors.base import ExecSession
from protocol.agent_update import HeartbeatReply
from protocol.attempts import (
    DesiredState,
    LogAck,
    LogChunk,
    LogReply,
    LogUpload,
    ObservedReport,
)
from protocol.datasets import DatasetReport, IndexResult
from protocol.enrollment import EnrollReply, EnrollRequest, IssuedCertificate, RenewalRequest
from protocol.heartbeat import Heartbeat
from protocol.results import PartSource, ResultPage, ResultReply, ResultUpload
from protocol.storage import CleanupOrder, StorageReport

UNAVAILABLE = frozenset({502, 503, 504})
OVERLOADED = UNAVAILABLE | {429}
UNAUTHENTICATED = 401
PARTIAL = 206
UNCHANGED = frozenset({204, 304})
SUCCESS = range(200, 300)
SERVER_ERRORS = 500
OCTETS = "application/octet-stream"
# Of each read and write of a streamed body, also over a slow line.
STREAM_TIMEOUT_SECONDS = 60.0
# Long polls: the portal may respond this much later than asked.
POLL_MARGIN_SECONDS = 10.0
NULL = msgspec.Raw(b"null")

T = TypeVar("T")


class _HeartbeatReply(HeartbeatReply, frozen=True, kw_only=True):
    """The reply with its list of access points unread: an invalid one must not cost the rest."""

    access_points: msgspec.Raw = NULL  # type: ignore[assignment]


class PortalConnection:
    """Calls the agent API. For one thread: each opens its own.

    Every call may raise:
        PortalUnreachableError: no access point answers, or the portal is overloaded.
        PortalRefusedError: the portal responded with another status.
    """

    def __init__(
        self,
        access_points: AccessPoints,
        *,
        agent_token: str = "",
        timeout_seconds: float = 10.0,
        tls: TLSContexts | None = None,
        certificate: AgentCertificate | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._certificate = certificate
        self.access_points = access_points
        self.timeout_seconds = timeout_seconds
        self._clock = clock
        self._tls = tls or TLSContexts()
        self.http = HTTPClient(self._tls)
        self._headers = {"Authorization": f"Bearer {agent_token}"} if agent_token else {}

    def enroll(self, request: EnrollRequest) -> EnrollReply:
        """Exchange a one-time token for an identity."""
        token = {"Authorization": f"Bearer {request.token}"}
        return _decode(*self._post("/agent/v1/enroll", request, token), EnrollReply)

    def renew(self, request: RenewalRequest) -> IssuedCertificate:
        """Request a new client certificate."""
        return _decode(*self._post("/agent/v1/certificate", request), IssuedCertificate)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Send a heartbeat; return what the portal wants. A new list of addresses is accepted."""
        response, url = self._post("/agent/v1/heartbeat", heartbeat)
        if response.status in UNCHANGED:
            return HeartbeatReply()
        reply = _decode(response, url, _HeartbeatReply)
        if reply.access_points != NULL:
            self.access_points.accept(reply.access_points)
        return HeartbeatReply(update=reply.update)

    def desired(self, generation: int, *, wait_seconds: float) -> DesiredState | None:
        """Return the desired state once it is another than `generation`; None after the wait."""
        query = urlencode({"generation": generation, "wait_seconds": f"{wait_seconds:g}"})
        response, url = self._request(
            "GET",
            f"/agent/v1/desired?{query}",
            timeout_seconds=wait_seconds + POLL_MARGIN_SECONDS,
            expected_seconds=wait_seconds,
        )
        return None if response.status in UNCHANGED else _decode(response, url, DesiredState)

    def report(self, observed: ObservedReport) -> None:
        """Report the observed attempts."""
        self._post("/agent/v1/observed", observed)

    def report_storage(self, report: StorageReport) -> CleanupOrder:
        """Report the container storage; return what to delete."""
        return _decode(*self._post("/agent/v1/storage", report), CleanupOrder)

    def ship_logs(self, chunks: list[LogChunk]) -> list[LogAck]:
        """Send new output of attempts; return what the portal has, for each chunk."""
        body = msgspec.msgpack.encode(LogUpload(chunks=chunks))
        headers = {"Content-Type": "application/msgpack"}
        reply = self._request("POST", "/agent/v1/logs", body=body, headers=headers)
        return _decode(*reply, LogReply).acks

    def send_lines(self, body: bytes) -> None:
        """Send lines of the host's logs, the JSON of a `LineUpload`."""
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        packed = gzip.compress(body, compresslevel=1)
        self._request("POST", "/agent/v1/lines", body=packed, headers=headers)

    def dataset_head(self, version_id: str) -> bytes:
        """Return the head of a version's manifest, as JSON."""
        response, _ = self._request("GET", f"/agent/v1/datasets/{version_id}/head")
        return response.data

    def dataset_page(self, version_id: str, sha256: str) -> bytes:
        """Return a page of a version's manifest, as it is stored."""
        response, _ = self._request("GET", f"/agent/v1/datasets/{version_id}/pages/{sha256}")
        return response.data

    def send_dataset_page(self, version_id: str, sha256: str, data: bytes) -> None:
        """Send a page of the manifest of a version that this agent indexes."""
        path = f"/agent/v1/datasets/{version_id}/pages/{sha256}"
        headers = {"Content-Type": "application/octet-stream"}
        self._request("PUT", path, body=data, headers=headers)

    def finish_dataset(self, version_id: str, result: IndexResult) -> None:
        """Send the head of the manifest of a version that this agent has indexed."""
        self._post(f"/agent/v1/datasets/{version_id}/head", result)

    def report_datasets(self, report: DatasetReport) -> None:
        """Report the cache of datasets."""
        self._post("/agent/v1/datasets", report)

    def part(self, sha256: str, offset: int, size_bytes: int) -> tuple[bytes, bool]:
        """Return a range of a stored part, or all of it; and whether it is the range."""
        headers = {
            "Range": f"bytes={offset}-{offset + size_bytes - 1}",
            "Accept-Encoding": "identity",
        }
        response, _ = self._request("GET", f"/agent/v1/parts/{sha256}", headers=headers)
        return response.data, response.status == PARTIAL

    def announce_results(self, upload: ResultUpload) -> ResultReply:
        """Announce files of an attempt; return the parts that the portal lacks."""
        return _decode(*self._post("/agent/v1/results", upload), ResultReply)

    def stored_results(self, attempt_id: str, *, after: str = "") -> ResultPage:
        """Return files that the job of an attempt has, those with a path after `after`."""
        query = urlencode({"after": after})
        reply = self._request("GET", f"/agent/v1/results/{attempt_id}?{query}")
        return _decode(*reply, ResultPage)

    def result_source(self, attempt_id: str, sha256: str) -> PartSource:
        """Return where a part of a job's results is."""
        reply = self._request("GET", f"/agent/v1/results/{attempt_id}/parts/{sha256}")
        return _decode(*reply, PartSource)

    def stream(
        self, method: str, path: str, *, body: Iterable[bytes] | None, size_bytes: int = 0
    ) -> urllib3.BaseHTTPResponse:
        """Send a body as it is made, to the current access point; return the open response."""
        url = self.access_points.current
        headers = dict(self.auth_headers(url))
        if body is not None:
            headers |= {"Content-Type": OCTETS, "Content-Length": str(size_bytes)}
        seconds = max(self.timeout_seconds, STREAM_TIMEOUT_SECONDS)
        connect_seconds = self.access_points.connect_seconds(seconds)
        try:
            # A move lets it finish; only the loss of the access point aborts it.
            with self.access_points.under_way(
                url, self.http.abort, expected_seconds=math.inf
            ) as request:
                response = self.http.pool_for(url).request(
                    method,
                    f"{url}{path}",
                    body=body,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=connect_seconds, read=seconds),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                request.is_answered = response.status < SERVER_ERRORS
        except HTTP_ERRORS as error:
            if not request.was_aborted:
                self.access_points.record_failure(url, root_cause(error))
            raise PortalUnreachableError(
                f"The portal at {url} does not answer: {root_cause(error)}."
            ) from error
        if response.status not in SUCCESS:
            _ = response.data  # the message
            self._check(response, f"{url}{path}")
        return response

    def tunnel(
        self,
        find_endpoint: Callable[[str, int], str | None],
        execute: Callable[[str, ExecSession], Awaitable[int]],
        should_go_on: Callable[[], bool],
    ) -> None:
        """Serve a tunnel at the current access point until it closes, should, or is to move."""
        # asyncio, SSH and WebSocket take 15 MB, and most agents never open a tunnel.
        from collector.tunnel import serve_tunnel  # noqa: PLC0415

        url = self.access_points.current
        try:
            serve_tunnel(
                url,
                headers=self.auth_headers(url),
                context=self._tls.current() if url.startswith("https:") else None,
                find_endpoint=find_endpoint,
                execute=execute,
                should_go_on=should_go_on,
                should_move=lambda is_idle: self.access_points.should_leave(url, is_idle=is_idle),
            )
        except OSError as error:
            raise PortalUnreachableError(f"No tunnel to {url}: {error}.") from error

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def _post(
        self, path: str, body: msgspec.Struct, headers: Mapping[str, str] | None = None
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        headers = {"Content-Type": "application/json", **(headers or {})}
        return self._request("POST", path, body=msgspec.json.encode(body), headers=headers)

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        expected_seconds: float = 0.0,
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        """Try each access point once, the current one first; return the response and its URL."""
        points = self.access_points
        failure: BaseException | None = None
        for _ in range(len(points)):
            url = points.current
            try:
                with points.under_way(
                    url, self.http.abort, expected_seconds=expected_seconds
                ) as request:
                    response = self.http.request(
                        method,
                        f"{url}{path}",
                        body=body,
                        headers={**self.auth_headers(url), **(headers or {})},
                        timeout_seconds=timeout_seconds or self.timeout_seconds,
                        connect_timeout_seconds=points.connect_seconds(self.timeout_seconds),
                    )
                    request.is_answered = response.status < SERVER_ERRORS
            except HTTP_ERRORS as error:
                failure = error
                if request.was_aborted:
                    continue
                if is_late(error) and len(points) > 1:
                    points.record_unavailable(url)
                    break
                points.record_failure(url, root_cause(error))
            else:
                address = f"{url}{path.partition('?')[0]}"
                may_try_soon = response.status in UNAVAILABLE and points.record_unavailable(url)
                self._check(response, address, may_try_soon=may_try_soon)
                return response, address
        raise PortalUnreachableError(
            f"The portal at {url} does not answer: {root_cause(failure)}."
        ) from failure

    def auth_headers(self, url: str) -> Mapping[str, str]:
        """Return the headers that authenticate the agent at an address."""
        certificate = self._certificate
        if certificate is not None and certificate.replaces_secret_for(url):
            return {}
        return self._headers

    def _check(
        self, response: urllib3.BaseHTTPResponse, address: str, *, may_try_soon: bool = False
    ) -> None:
        if response.status in SUCCESS or response.status in UNCHANGED:
            return
        reason = error_message(response.data, default=response.reason or "")
        message = f"{address} answered {response.status}: {reason}"
        if response.status == UNAUTHENTICATED and self._certificate is not None:
            self._certificate.distrust()
        if response.status in OVERLOADED:
            retry_after = None if may_try_soon else response.headers.get("Retry-After")
            wait = retry_after_seconds(retry_after, now=self._clock())
            raise PortalUnreachableError(message, retry_after_seconds=wait)
        if is_web_page(response.data):
            message += " (from a server in front of the portal; see client_certificate_file)"
        raise PortalRefusedError(message, http_status=response.status)


def _decode(response: urllib3.BaseHTTPResponse, address: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.data, type=kind)
    except msgspec.MsgspecError as error:
        raise PortalRefusedError(
            f"The response of {address} is not a valid {kind.__name__}: {error}. "
            "Check that the address is that of a Vedette portal.",
            http_status=response.status,
        ) from error

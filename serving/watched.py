"""Every request has an id, and is counted by route.

An id of a trusted proxy is taken over, so that its log and ours can be joined. Routes are patterns,
never paths: there are only so many.
"""

import re
import time
from collections.abc import Callable, Collection
from functools import cache
from ipaddress import ip_address

from prometheus_client import Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.ids import new_id
from core.networks import Network, is_within
from core.request_notes import ROUTE, begin_request
from serving.safe_headers import HEADERS

# In the ASGI scope of a request: the address that the connection comes from.
PEER = "vedette.peer"
REQUEST_ID_HEADER = b"x-request-id"
OTHER_ROUTE = "other"
# What ends without an answer, as when the client is gone.
NO_ANSWER = "none"
Header = tuple[bytes, bytes]
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._=+/-]{1,128}")

REQUESTS = Counter(
    "vedette_http_requests", "Requests answered, by class of their status.", ["route", "status"]
)
REQUEST_SECONDS = Histogram(
    "vedette_http_request_seconds",
    "Time from the headers of a request to the end of its response; long polls wait.",
    ["route"],
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
)
WEBSOCKETS = Gauge("vedette_websockets", "Open WebSockets: tunnels, terminals, web pages of jobs.")


Begin = Callable[[Scope, bytes, Callable[[bool], None]], bool]
"""Begins to answer a request that was received as a whole, without ASGI's task and messages.

Gets the scope, the body, and what to call later: with True if the answer is 204 without headers of
its own, with False if the application shall answer, which finds in the scope what was done. Returns
False if nothing was begun, and the application shall do all.
"""


class Watched:
    """ASGI application that gives requests their ids, and measures them.

    Args:
        app: answers the requests, and notes their routes.
        proxies: whose request ids are taken over.
        begin: answers usual requests of the paths in `begun_paths` at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        proxies: tuple[Network, ...],
        *,
        begin: Begin | None = None,
        begun_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._proxies = proxies
        self._begin = begin
        self.begun_paths = frozenset(begun_paths)

    def begin(
        self, scope: Scope, body: bytes, on_done: Callable[[tuple[Header, ...] | None], None]
    ) -> bool:
        """Begin to answer a request at once; `on_done` gets the headers of a 204, or None.

        See `Begin`.
        """
        started = time.perf_counter()
        scope[PEER] = scope.get("client")

        def on_begun(is_done: bool) -> None:  # noqa: FBT001 - of a callback
            if not is_done:
                on_done(None)
                return
            request_id = self._forwarded_id(scope) or new_id()
            requests, seconds = _metrics_of(scope["path"], "2xx")
            requests.inc()
            seconds.observe(time.perf_counter() - started)
            on_done((*HEADERS, (REQUEST_ID_HEADER, request_id.encode())))

        return self._begin is not None and self._begin(scope, body, on_begun)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope[PEER] = scope.get("client")
        request_id = self._forwarded_id(scope) or new_id()
        notes = begin_request(request_id)
        if scope["type"] == "websocket":
            with WEBSOCKETS.track_inprogress():
                await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), NO_ANSWER
        header = (REQUEST_ID_HEADER, request_id.encode())

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = f"{message['status'] // 100}xx"
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            requests, seconds = _metrics_of(notes.get(ROUTE, OTHER_ROUTE), status)
            requests.inc()
            seconds.observe(time.perf_counter() - started)

    def _forwarded_id(self, scope: Scope) -> str | None:
        if not self._proxies or not peer_is_within(scope, self._proxies):
            return None
        for name, value in scope["headers"]:
            if name == REQUEST_ID_HEADER and _REQUEST_ID.fullmatch(value):
                return str(value.decode("ascii"))
        return None


def answered_requests() -> float:
    """Return how many requests this process has answered."""
    return sum(
        sample.value
        for metric in REQUESTS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )


# prometheus_client takes longer to look labels up than to count.
@cache
def _metrics_of(route: str, status: str) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(route, status), REQUEST_SECONDS.labels(route)


def peer_is_within(scope: Scope, networks: tuple[Network, ...]) -> bool:
    """Return whether the connection of a request comes from one of the networks."""
    peer = scope.get(PEER)
    return peer is not None and address_is_within(peer[0], networks)


def address_is_within(host: str, networks: tuple[Network, ...]) -> bool:
    """Return whether an address, as ASGI has it, belongs to one of the networks."""
    try:
        return is_within(ip_address(host.partition("%")[0]), networks)
    except ValueError:
        return False

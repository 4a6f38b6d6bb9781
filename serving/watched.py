"""Every request has an id, and is counted by route.

An id of a trusted proxy is taken over, so that its log and ours can be joined. Routes are patterns,
never paths: there are only so many.
"""

import re
import time
from functools import cache
from ipaddress import ip_address

from prometheus_client import Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.ids import new_id
from core.networks import Network, is_within
from core.request_notes import ROUTE, begin_request

# In the ASGI scope of a request: the address that the connection comes from.
PEER = "vedette.peer"
REQUEST_ID_HEADER = b"x-request-id"
OTHER_ROUTE = "other"
# What ends without an answer, as when the client is gone.
NO_ANSWER = "none"
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


class Watched:
    """ASGI application that gives requests their ids, and measures them.

    Args:
        app: answers the requests, and notes their routes.
        proxies: whose request ids are taken over.
    """

    def __init__(self, app: ASGIApp, proxies: tuple[Network, ...]) -> None:
        self._app = app
        self._proxies = proxies

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

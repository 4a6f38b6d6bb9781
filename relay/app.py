"""The agent API of a relay, as an ASGI application."""

import math
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from access.errors import HANDLERS, on_bug
from access.ingest.body import BYTE_ORDER_MARK, read_body
from access.longpoll import disconnected
from core.clock import Clock, to_ns, utc_now
from core.errors import UnavailableError
from core.request_notes import APPLIANCE_ID, ROUTE, TENANT_ID, note
from protocol.relays import RelayedAgent, RelayedWrite
from protocol.tunnel import TUNNEL_PATH
from relay.passing import Passing
from relay.polls import Polls
from relay.registry import Registry
from relay.sender import Sender

WRITE_PATH = "/api/v2/write"
DESIRED_PATH = "/agent/v1/desired"
# Answered here: whether this relay can accept samples.
HEALTH_PATHS = frozenset({"/health", "/ready"})
# Of the agent API, as in access.app.
PREFIXES = ("/api/v2/", "/agent/v1/")
PATHS = frozenset({"/write", "/ping", "/query", "/collectd", "/api/v1/prom/write", "/v1/metrics"})
# The portal explains what is wrong with others.
PRECISIONS = frozenset({"ns", "us", "ms", "s"})
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.3, 30.0
ACTIVE_SECONDS = 60.0
_MAX_DIGITS = 18
_DOTS = frozenset({".", ".."})


class RelayAPI:
    """Answers writes and polls of the agents in the registry; the portal answers all else.

    Args:
        registry: who may authenticate.
        sender: of writes.
        polls: of desired states.
        passing: to the portal.
        max_body_bytes: of a write, compressed and decompressed.
        problem: returns why samples can't be accepted; "" if they can.
        clock: the time.
        monotonic: seconds of a clock.
    """

    def __init__(
        self,
        registry: Registry,
        sender: Sender,
        polls: Polls,
        passing: Passing,
        *,
        max_body_bytes: int,
        problem: Callable[[], str],
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._sender = sender
        self._polls = polls
        self._passing = passing
        self._max_body_bytes = max_body_bytes
        self._problem = problem
        self._clock = clock
        self._monotonic = monotonic
        self._seen: dict[str, float] = {}

    def active_agents(self) -> int:
        """Return how many agents have sent something in the last minute."""
        oldest = self._monotonic() - ACTIVE_SECONDS
        self._seen = {name: seen for name, seen in list(self._seen.items()) if seen >= oldest}
        return len(self._seen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or serve a WebSocket."""
        if scope["type"] == "websocket":
            note(ROUTE, "websocket")
            websocket = WebSocket(scope, receive, send)
            if scope["path"] == TUNNEL_PATH:
                await self._passing.websocket(websocket)
            else:
                await websocket.close()
            return
        request = Request(scope, receive)
        try:
            response = await self._response(request, send)
        except Exception as error:
            handler = next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)
            response = await handler(request, error)
            if handler is on_bug:
                await response(scope, receive, send)
                raise
        if response is not None:
            await response(scope, receive, send)

    async def _response(self, request: Request, send: Send) -> Response | None:
        """Return the response to a request; None if the portal has given it."""
        path, method = request.scope["path"], request.method
        if path in HEALTH_PATHS and method in {"GET", "HEAD"}:
            note(ROUTE, path)
            return await self._health()
        # A proxy of the portal may resolve dots, and lead to what is for the relay alone.
        has_dots = not _DOTS.isdisjoint(path.replace("\\", "/").split("/"))
        if has_dots or not (path.startswith(PREFIXES) or path in PATHS):
            raise HTTPException(404)
        agent = self._agent(request)
        if agent is not None and path == WRITE_PATH and method == "POST":
            note(ROUTE, path)
            precision = request.query_params.get("precision", "ns")
            if precision in PRECISIONS:
                return await self._write(request, agent, precision)
        if agent is not None and path == DESIRED_PATH and method == "GET":
            note(ROUTE, path)
            return await self._desired(request, agent, send)
        note(ROUTE, "passed on")
        await self._passing.request(
            request.scope, request.receive, send, is_agent=agent is not None
        )
        return None

    def _agent(self, request: Request) -> RelayedAgent | None:
        agent = self._registry.agent(request.scope, request.headers.get("Authorization", ""))
        if agent is not None:
            self._seen[agent.appliance_id] = self._monotonic()
            note(TENANT_ID, agent.tenant_id)
            note(APPLIANCE_ID, agent.appliance_id)
        return agent

    async def _health(self) -> Response:
        problem = await to_thread.run_sync(self._problem)  # it may wait for the disk
        if problem:
            raise UnavailableError(problem)
        return JSONResponse({"name": "vedette", "message": "ready", "status": "pass"})

    async def _write(self, request: Request, agent: RelayedAgent, precision: str) -> Response:
        body = await read_body(request, max_bytes=self._max_body_bytes, tenant_id=agent.tenant_id)
        outcome = await self._sender.write(
            RelayedWrite(
                appliance_id=agent.appliance_id,
                precision=precision,
                body=body.removeprefix(BYTE_ORDER_MARK),
                received_at_ns=to_ns(self._clock()),
            )
        )
        headers = {}
        if outcome.retry_after_seconds:
            headers["Retry-After"] = str(outcome.retry_after_seconds)
        media_type = "application/json" if outcome.body else None
        return Response(outcome.body, outcome.status, headers, media_type)

    async def _desired(self, request: Request, agent: RelayedAgent, send: Send) -> Response | None:
        """Wait here for a change; let the portal answer what it is."""
        wait = _wait_of(request)
        query = None
        if wait is not None:
            generation, seconds = wait
            if not await self._polls.wait(
                agent.appliance_id,
                generation,
                timeout_seconds=seconds,
                disconnected=disconnected(request),
            ):
                return Response(status_code=204)
            query = urlencode({"generation": generation, "wait_seconds": 0}).encode()
        await self._passing.request(
            request.scope, request.receive, send, is_agent=True, query=query
        )
        return None


def _wait_of(request: Request) -> tuple[int, float] | None:
    """Return generation and duration of a poll that waits; None of any other."""
    parameters = dict(parse_qsl(request.url.query))
    generation = parameters.get("generation", "")
    try:
        seconds = float(parameters.get("wait_seconds", "0"))
    except ValueError:
        return None
    if not (generation.isdecimal() and generation.isascii() and len(generation) <= _MAX_DIGITS):
        return None
    if not math.isfinite(seconds) or seconds < MIN_WAIT_SECONDS:
        return None
    return int(generation), min(seconds, MAX_WAIT_SECONDS)

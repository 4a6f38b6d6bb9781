"""Keeps clients of the portal away from its threads: they cost a thread only while Flask works.

a2wsgi gives a request a thread from its headers to the last byte that the client has read. Here, a
body is received before, and a response is taken from the thread at once and sent afterwards. Both
are bounded: bodies by whether the sender is signed in, responses by address. Requests take turns of
a few threads (`serving.portal_shares`), because threads that compute delay the whole process.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from http import HTTPStatus
from typing import Any

from a2wsgi import WSGIMiddleware
from a2wsgi.asgi_typing import SendEvent
from a2wsgi.wsgi import WSGIResponder
from a2wsgi.wsgi_typing import Environ, ExceptionInfo, StartResponse, WriteCallable, WSGIApp
from anyio import to_thread
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import OverloadedError, TooLargeError, VedetteError
from core.turns import Requests
from portal.app import MAX_BODY_BYTES
from portal.downloads import DISCONNECTED
from portal.middleware.errors import error_payload
from portal.middleware.security import HEADERS, STRICT_POLICY
from serving.portal_shares import IS_BUSY, PortalShares
from tenants.users.throttling import network_of

# Every form that needs no credentials fits.
MAX_ANONYMOUS_BODY_BYTES = 64 * 1024
# Of all bodies larger than that, which are in memory at once.
MAX_LARGE_BODIES_BYTES = 16 * MAX_BODY_BYTES
# Every page and static file fits; a thread waits for the client of a larger response.
MAX_BUFFERED_BYTES = 2 * 1024 * 1024
# Of the responses that the clients of an address have not read.
MAX_UNREAD_BYTES = 32 * 1024 * 1024
# In the ASGI scope of a request: how long its thread has computed.
CPU_SECONDS = "vedette.cpu_seconds"
# Clients that send many queries at a time, such as a dashboard of Grafana, are refused after a wait
# for their other ones: they know when to send them again, and give up after a minute by themselves.
QUERY_PATHS = ("/api/v1/prometheus/", "/api/v1/influxdb/", "/api/v1/query")
QUERY_WAIT_SECONDS = 5.0
# The deadline for reading applies to each part.
PART_BYTES = 32 * 1024


class PortalRequests:
    """ASGI application in front of the portal's threads.

    Args:
        portal: the portal as ASGI application.
        is_signed_in: whether a request has valid credentials; called in a thread.
        threads: of the portal, which users, tenants and addresses share. Python computes in one
            thread at a time: each more lets the event loop wait longer for its turn.
    """

    def __init__(
        self, portal: ASGIApp, *, is_signed_in: Callable[[Scope], bool], threads: int
    ) -> None:
        self._portal = portal
        self._is_signed_in = is_signed_in
        self._shares = PortalShares(threads)
        self._unread_bytes: Counter[str] = Counter()
        self._large_bodies_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one that exceeds a bound does not reach Flask: its pages cost more."""
        client = scope.get("client")
        network = network_of(client[0]) if client else ""
        with ExitStack() as stack:
            try:
                self._check_unread(network)
                limit = await self._limit(scope)
                if limit > MAX_ANONYMOUS_BODY_BYTES:
                    stack.enter_context(self._large_body(limit))
                body = await _read(scope, receive, limit=limit)
                scope = _with_length(scope, len(body))
                turns = stack.enter_context(ExitStack())
                has_waited = await self._enter(scope, network, turns)
            except VedetteError as error:
                await _refusal(scope, error)(scope, receive, send)
                return
            except ConnectionResetError:
                return  # the client is gone
            if has_waited and await _is_gone(scope, receive):
                return

            def leave() -> None:
                self._shares.charge(scope, network, scope.pop(CPU_SECONDS, 0.0))
                turns.close()

            # A stream keeps its thread, which waits for the client, but not the turns.
            await self._respond(scope, _received(body, receive), send, network, leave)
            leave()
            self._shares.remember(scope)

    async def _enter(self, scope: Scope, network: str, turns: ExitStack) -> bool:
        """Wait for the turns of a request; return whether it did."""
        is_query = scope["path"].startswith(QUERY_PATHS)
        try:
            async with asyncio.timeout(QUERY_WAIT_SECONDS if is_query else None):
                return await self._shares.enter(scope, network, turns)
        except TimeoutError:
            raise OverloadedError(
                "You run as many queries as you may, and they take long. Send fewer at a time."
            ) from None

    def _check_unread(self, network: str) -> None:
        if self._unread_bytes[network] > MAX_UNREAD_BYTES:
            raise OverloadedError("This address does not read its responses. Read them first.")

    @contextmanager
    def _large_body(self, size: int) -> Iterator[None]:
        if self._large_bodies_bytes >= MAX_LARGE_BODIES_BYTES:
            raise OverloadedError("The portal is receiving too many large requests. Try again.")
        self._large_bodies_bytes += size
        try:
            yield
        finally:
            self._large_bodies_bytes -= size

    async def _limit(self, scope: Scope) -> int:
        """Return the largest body that the sender may send, at least as much as it announces."""
        announced = _announced(scope)
        if announced is not None and announced <= MAX_ANONYMOUS_BODY_BYTES:
            return MAX_ANONYMOUS_BODY_BYTES
        if announced is not None and announced > MAX_BODY_BYTES:
            raise _too_large(MAX_BODY_BYTES)
        is_signed_in = await to_thread.run_sync(self._is_signed_in, scope)
        if announced is not None and not is_signed_in:
            raise _too_large(MAX_ANONYMOUS_BODY_BYTES)
        return MAX_BODY_BYTES if is_signed_in else MAX_ANONYMOUS_BODY_BYTES

    async def _respond(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        network: str,
        on_start: Callable[[], None],
    ) -> None:
        queue: asyncio.Queue[Message] = asyncio.Queue()
        has_room, held_bytes, total_bytes = asyncio.Event(), 0, 0
        watch: asyncio.Task[None] | None = None

        def count(size: int) -> None:
            nonlocal held_bytes
            held_bytes += size
            self._unread_bytes[network] += size
            if not self._unread_bytes[network]:
                del self._unread_bytes[network]

        async def hold(message: Message) -> None:
            nonlocal total_bytes, watch
            on_start()
            size = len(message.get("body", b""))
            count(size)
            queue.put_nowait(message)
            total_bytes += size
            if watch is None and total_bytes > MAX_BUFFERED_BYTES:
                watch = asyncio.create_task(_watch_for_disconnect(scope, receive))
            while held_bytes > MAX_BUFFERED_BYTES and not delivery.done():
                has_room.clear()
                await has_room.wait()

        async def deliver() -> None:
            try:
                has_more = True
                while has_more:
                    message = await queue.get()
                    await _send_in_parts(message, send)
                    count(-len(message.get("body", b"")))
                    has_room.set()
                    has_more = message["type"] != "http.response.body" or message["more_body"]
            finally:
                asyncio.get_running_loop().call_soon(has_room.set)

        delivery = asyncio.create_task(deliver())
        try:
            await self._portal(scope, receive, hold)
            await delivery
        finally:
            delivery.cancel()
            if watch is not None:
                watch.cancel()
            count(-held_bytes)


class PortalThreads(WSGIMiddleware):
    """The portal as ASGI application, whose responses of known size leave their thread at once."""

    def __init__(self, app: WSGIApp, *, workers: int) -> None:
        super().__init__(app, workers=workers)
        self._requests = Requests()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - a2wsgi's
        """Answer a request in a thread."""
        if scope["type"] == "http":
            responder = _WholeResponder(self.app, self.executor, self.send_queue_size)
            responder.requests = self._requests
            await responder(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _WholeResponder(WSGIResponder):
    """Keeps the parts of a response of known size until its thread is done.

    a2wsgi's thread waits for the event loop with each part, of which each response has three.
    """

    requests: Requests
    _parts: list[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - a2wsgi's
        self._scope = scope
        await super().__call__(scope, receive, send)

    def wsgi(self, environ: Environ, start_response: StartResponse) -> None:
        started = time.thread_time()
        try:
            with self.requests.answering(is_long=self._scope.get(IS_BUSY, False)):
                super().wsgi(environ, start_response)
        finally:
            self._scope[CPU_SECONDS] = time.thread_time() - started

    def start_response(
        self,
        status: str,
        response_headers: list[tuple[str, str]],
        exc_info: ExceptionInfo | None = None,
    ) -> WriteCallable:
        sizes = [value for name, value in response_headers if name.lower() == "content-length"]
        if sizes and sizes[0].isdecimal() and int(sizes[0]) <= MAX_BUFFERED_BYTES:
            self._parts = []
        return super().start_response(status, response_headers, exc_info)

    def send(self, message: SendEvent | None) -> None:
        if self._parts is None:
            super().send(message)
        elif message is not None:
            self._parts.append(message)

    async def sender(self, send: Any) -> None:  # noqa: ANN401 - a2wsgi's
        await super().sender(send)
        if self._parts:
            start, *chunks = self._parts
            await send(start)
            await send(
                {"type": "http.response.body", "body": b"".join(chunk["body"] for chunk in chunks)}
            )


async def _is_gone(scope: Scope, receive: Receive) -> bool:
    """Return whether the client has gone while its request waited."""
    watch = asyncio.create_task(_watch_for_disconnect(scope, receive))
    await asyncio.sleep(0)
    watch.cancel()
    return DISCONNECTED in scope


async def _watch_for_disconnect(scope: Scope, receive: Receive) -> None:
    """Mark the scope when the client has gone: a long response need not be generated further."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope[DISCONNECTED] = True


async def _send_in_parts(message: Message, send: Send) -> None:
    body = message.get("body", b"")
    message.setdefault("more_body", False)
    if len(body) <= PART_BYTES:
        await send(message)
        return
    for start in range(0, len(body), PART_BYTES):
        part = body[start : start + PART_BYTES]
        is_last = start + PART_BYTES >= len(body)
        has_more = not is_last or message["more_body"]
        await send({"type": message["type"], "body": part, "more_body": has_more})


def _announced(scope: Scope) -> int | None:
    """Return the announced size of the body; None for one of unknown size."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length")
    if length is not None:
        return int(length) if length.isdigit() else None
    return None if b"transfer-encoding" in headers else 0


async def _read(scope: Scope, receive: Receive, *, limit: int) -> bytes:
    if _announced(scope) == 0:
        return b""
    body, has_more = bytearray(), True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        has_more = message.get("more_body", False)
    return bytes(body)


def _with_length(scope: Scope, size: int) -> Scope:
    """Return the scope of a body whose size is known: WSGI has no chunked ones."""
    if _announced(scope) is not None:
        return scope
    dropped = {b"transfer-encoding", b"content-length"}
    headers = [pair for pair in scope["headers"] if pair[0] not in dropped]
    return {**scope, "headers": [*headers, (b"content-length", str(size).encode())]}


def _received(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first."""
    is_given = False

    async def give() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def _refusal(scope: Scope, error: VedetteError) -> Response:
    headers = {**HEADERS, "Content-Security-Policy": STRICT_POLICY, "Cache-Control": "no-store"}
    if error.retry_after_seconds:
        headers["Retry-After"] = f"{error.retry_after_seconds:.0f}"
    if scope["path"].startswith("/api/"):
        payload = error_payload(code=error.code, status=error.status, message=error.message)
        return JSONResponse(payload, error.status, headers)
    reason = HTTPStatus(error.status).phrase
    text = f"<!doctype html><title>{reason}</title><h1>{reason}</h1><p>{escape(error.message)}</p>"
    return HTMLResponse(text, error.status, headers)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"The body is larger than the limit of {limit} bytes. Send less, or sign in first."
        if limit < MAX_BODY_BYTES
        else f"The body is larger than the limit of {limit} bytes. Send less at once."
    )

"""Requests that another process of the portal answers: the one with the tunnel to the appliance.

Users and agents reach any process. It passes the request on as it came, with a signed header that
says where from, and the answer back. Nothing is forwarded twice.
"""

import asyncio
import importlib
import ssl
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from access.jobs.proxying import (
    GOING_AWAY,
    MAX_MESSAGE_BYTES,
    OF_CONNECTION,
    OPEN_SECONDS,
    RESPONSE_SECONDS,
    TRY_AGAIN,
    close_quietly,
    handshake_headers,
    host_header,
    splice,
    target_path,
)
from access.longpoll import disconnected
from core.clock import utc_now
from core.errors import UnavailableError

T = TypeVar("T")

HEADER = b"x-vedette-forwarded"
SCOPE_KEY = "vedette.forwarded"
# The instance of a service that a request is for.
INSTANCE_KEY = "vedette.instance"
# A signature is for a request that is on its way.
MAX_AGE_SECONDS = 30
CONNECT_SECONDS = 5.0
# This process gives the response the ID of its own request.
_NOT_RETURNED = OF_CONNECTION | {b"x-request-id"}
_TIMEOUT = dict.fromkeys(("read", "write"), RESPONSE_SECONDS) | {"connect": CONNECT_SECONDS}


class HolderGoneError(UnavailableError):
    """Nothing answers where the process with the tunnel was; the request has not been read."""


class Forwarded(msgspec.Struct, frozen=True):
    """Where a forwarded request comes from.

    Attributes:
        path: of the request.
        address: of the client.
        appliance_id: of the agent that the forwarding process has authenticated, if any.
        instance_id: of the service that the forwarding process has chosen, if any.
    """

    path: str
    address: str = ""
    appliance_id: str = ""
    instance_id: str = ""


class Forwarder:
    """Forwards requests, and recognizes those that other processes forward.

    Args:
        url: where other processes reach this one.
        secret: the key that all processes share.
        tls: the context for processes that are reached over HTTPS.
    """

    def __init__(self, url: str, *, secret: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._signer = URLSafeTimedSerializer(secret, salt="vedette forwarded request")
        self._tls = tls

    def trusting(self, app: ASGIApp) -> ASGIApp:
        """Return the app, with the client's address where another process forwards a request.

        The app never sees the header: a job that got it could send it to the portal.
        """

        # Not a coroutine of its own, which each request would pay for.
        def trusted(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            forwarded = self._take(scope)
            if forwarded is not None:
                scope[SCOPE_KEY] = forwarded
                scope["client"] = (forwarded.address, 0)
                scope[INSTANCE_KEY] = forwarded.instance_id
            return app(scope, receive, send)

        return trusted

    async def request(self, scope: Scope, receive: Receive, send: Send, *, url: str) -> None:
        """Let the process at a URL answer a request.

        Raises:
            HolderGoneError: nothing answers there.
            UnavailableError: it broke off before its answer.
        """
        # 6 MiB that servers without other processes save; in a thread, because it takes a moment.
        await asyncio.to_thread(importlib.import_module, "httpx")
        import httpx  # noqa: PLC0415

        request = Request(scope, receive)
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        # The path is not appended to the URL: one such as "*@host" would lead to another server.
        sent = httpx.Request(
            request.method,
            url,
            headers=self._headers(scope),
            content=request.stream() if has_body else None,
            extensions={"timeout": _TIMEOUT, "target": target_path(scope).encode("latin-1")},
        )
        # A connection for each request, so that none is left open when the process ends.
        async with httpx.AsyncHTTPTransport(verify=self._tls or False) as transport:
            try:
                asking = transport.handle_async_request(sent)
                answer = await (asking if has_body else while_connected(request, asking))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise HolderGoneError(f"The portal's process at {url} does not answer.") from error
            except httpx.HTTPError as error:
                raise UnavailableError(
                    "Another process of the portal broke off. Try again."
                ) from error
            except ClientDisconnect:
                return
            response = StreamingResponse(answer.aiter_raw(), answer.status_code)
            response.raw_headers = [
                (name.lower(), value)
                for name, value in answer.headers.raw
                if name.lower() not in _NOT_RETURNED
            ]
            try:
                await response(scope, receive, send)
            finally:
                await answer.aclose()

    async def websocket(self, websocket: WebSocket, *, url: str, appliance_id: str = "") -> None:
        """Let the process at a URL serve a WebSocket; of an agent, if it is authenticated.

        Raises:
            HolderGoneError: nothing answers there.
        """
        scope, peer = websocket.scope, urlsplit(url)
        host = host_header(scope).decode("latin-1")
        scheme = "wss" if peer.scheme == "https" else "ws"
        try:
            other = await connect(
                f"{scheme}://{host}{target_path(scope)}",
                host=peer.hostname,
                port=peer.port,
                ssl=self._tls if scheme == "wss" else None,
                additional_headers=handshake_headers(self._headers(scope, appliance_id)),
                # An empty list would be sent as an empty header, which is not valid.
                subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=CONNECT_SECONDS if appliance_id else OPEN_SECONDS,
                proxy=None,
            )
        except OSError as error:
            raise HolderGoneError(f"The portal's process at {url} does not answer.") from error
        except (WebSocketException, ValueError):  # ValueError: Host has no valid port
            await websocket.close(TRY_AGAIN)
            return
        try:
            await websocket.accept(other.subprotocol)
            await splice(websocket, other)
        finally:
            await other.close()
            await close_quietly(websocket, other.close_code or GOING_AWAY)

    def _headers(self, scope: Scope, appliance_id: str = "") -> list[tuple[bytes, bytes]]:
        client = scope.get("client")
        address = client[0] if client else ""
        forwarded = Forwarded(scope["path"], address, appliance_id, scope.get(INSTANCE_KEY, ""))
        signature = self._signer.dumps(msgspec.to_builtins(forwarded))
        headers = [(name, value) for name, value in scope["headers"] if name not in OF_CONNECTION]
        return [*headers, (HEADER, str(signature).encode("ascii"))]

    def _take(self, scope: Scope) -> Forwarded | None:
        """Return where a request comes from, None if no other process forwards it."""
        signature = next((value for name, value in scope["headers"] if name == HEADER), None)
        if signature is None:
            return None
        scope["headers"] = [header for header in scope["headers"] if header[0] != HEADER]
        with suppress(BadData, msgspec.ValidationError, UnicodeDecodeError):
            # The two hosts' clocks may differ, and the library refuses signatures of the future.
            signed, signed_at = self._signer.loads(signature.decode("ascii"), return_timestamp=True)
            forwarded = msgspec.convert(signed, Forwarded)
            is_recent = abs((utc_now() - signed_at).total_seconds()) <= MAX_AGE_SECONDS
            return forwarded if is_recent and forwarded.path == scope["path"] else None
        return None


async def while_connected(request: Request, asking: Coroutine[Any, Any, T]) -> T:
    """Return the answer to a request without a body, if the client waits for it.

    Raises:
        ClientDisconnect: it has gone, and the question was taken back.
    """
    answering, leaving = asyncio.create_task(asking), asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return await answering
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)

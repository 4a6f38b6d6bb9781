"""Requests that the portal answers: passed on as they come, and its answers back, in a stream.

The portal gets the relay's token, the address of the client, and its client certificate, and
authenticates the agent itself. What a client sends in these headers or those of proxies is removed.
"""

import logging
import ssl
from urllib.parse import quote, urlsplit

import httpx
from anyio import CapacityLimiter, WouldBlock
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from access.errors import BadRequestError
from access.jobs.forwarding import while_connected
from access.jobs.proxying import (
    GOING_AWAY,
    MAX_MESSAGE_BYTES,
    OF_CONNECTION,
    RESPONSE_SECONDS,
    TRY_AGAIN,
    close_quietly,
    handshake_headers,
    splice,
    target_path,
)
from protocol.relays import ADDRESS_HEADER, CERTIFICATE_HEADER, TOKEN_HEADER
from protocol.tunnel import TUNNEL_PATH
from relay.errors import RelayBusyError, UpstreamAwayError, UpstreamRefusedError
from relay.upstream import CONNECT_SECONDS, IDLE_SECONDS, why_unreachable

log = logging.getLogger(__name__)

# How long a request waits for a connection.
POOL_SECONDS = 10.0
_TIMEOUT = dict.fromkeys(("read", "write"), RESPONSE_SECONDS) | {
    "connect": CONNECT_SECONDS,
    "pool": POOL_SECONDS,
}
_OURS = frozenset(
    name.lower().encode() for name in (TOKEN_HEADER, ADDRESS_HEADER, CERTIFICATE_HEADER)
)
# What a client could claim to be, and what this connection alone is about.
_NOT_PASSED = (
    OF_CONNECTION
    | _OURS
    | frozenset(
        b"host expect forwarded via x-real-ip x-vedette-client-certificate x-vedette-client-verify "
        b"x-vedette-proxy x-vedette-forwarded x-request-id".split()
    )
)
# This server sets them.
_NOT_RETURNED = OF_CONNECTION | {b"x-request-id", b"date", b"server"}
_MAX_REFUSAL_BYTES = 64 * 1024
_UNAUTHENTICATED = 401
# The code of the error with which the portal refuses the relay itself.
_UNKNOWN_RELAY = b'"unknown_relay"'
_REFUSAL = "The portal does not accept this relay. Use another access point, or send again later."


class Passing:
    """Passes requests on. For the tasks of one event loop.

    Args:
        url: of the portal, without a trailing slash.
        token: of the relay.
        tls: how the portal's certificate is verified; None without TLS.
        max_connections: to the portal, for requests of agents; others have a quarter of it.
        max_tunnels: WebSockets to the portal.

    Attributes:
        passed: requests and WebSockets that the portal has answered.
        failed: those that it has not.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        max_connections: int,
        max_tunnels: int,
    ) -> None:
        self.passed = self.failed = 0
        self._url = url
        self._token = token.encode()
        self._tls = tls
        self._for_agents = _transport(tls, max_connections)
        self._for_others = _transport(tls, max(1, max_connections // 4))
        self._tunnels = CapacityLimiter(max_tunnels)

    async def request(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        is_agent: bool,
        query: bytes | None = None,
    ) -> None:
        """Let the portal answer a request; with another query, if that is given.

        Those who are no agents in the registry have connections of their own: they can't take all
        by requests that come slowly.

        Raises:
            BadRequestError: the request can't be sent as it came.
            UpstreamAwayError: it does not answer.
            UpstreamRefusedError: it does not accept the relay's token.
            RelayBusyError: all connections to it are in use.
        """
        if query is not None:
            scope = {**scope, "query_string": query}
        request = Request(scope, receive)
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        # The path is not appended to the URL: one such as "*@host" would lead to another server.
        sent = httpx.Request(
            request.method,
            self._url,
            headers=self._headers(scope),
            content=request.stream() if has_body else None,
            extensions={"timeout": _TIMEOUT, "target": target_path(scope).encode("latin-1")},
        )
        try:
            transport = self._for_agents if is_agent else self._for_others
            asking = transport.handle_async_request(sent)
            answer = await (asking if has_body else while_connected(request, asking))
        except httpx.PoolTimeout as error:
            self.failed += 1
            raise RelayBusyError(
                "All connections of this relay to the portal are in use. Send again later."
            ) from error
        except httpx.LocalProtocolError as error:
            raise BadRequestError(f"The request is not valid HTTP: {error}.") from error
        except httpx.HTTPError as error:
            self.failed += 1
            raise UpstreamAwayError(
                f"This relay can't reach the portal: {why_unreachable(error)}. Send again later."
            ) from error
        except ClientDisconnect:
            return
        try:
            response = await self._response(answer)
            try:
                await response(scope, receive, send)
            except httpx.HTTPError as error:
                # The server closes the connection, so that the client sees it, too.
                log.debug("the portal broke its answer off: %s", error)
        finally:
            await answer.aclose()

    async def websocket(self, websocket: WebSocket) -> None:
        """Let the portal serve a WebSocket, the tunnel of an agent."""
        try:
            self._tunnels.acquire_on_behalf_of_nowait(websocket)
        except WouldBlock:
            self.failed += 1
            await websocket.close(TRY_AGAIN)
            return
        try:
            await self._serve(websocket)
        finally:
            self._tunnels.release_on_behalf_of(websocket)

    async def _serve(self, websocket: WebSocket) -> None:
        scope, portal = websocket.scope, urlsplit(self._url)
        scheme = "wss" if portal.scheme == "https" else "ws"
        try:
            other = await connect(
                # Not the path as it came: one such as "*@host" would lead to another server.
                f"{scheme}://{portal.netloc}{TUNNEL_PATH}",
                ssl=self._tls,
                additional_headers=handshake_headers(self._headers(scope)),
                # An empty list would be sent as an empty header, which is not valid.
                subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=POOL_SECONDS,
                proxy=None,
                user_agent_header=None,
            )
        except InvalidStatus as error:
            self.failed += 1
            refusal = error.response
            if _UNKNOWN_RELAY in (refusal.body or b""):
                await websocket.close(TRY_AGAIN)
                return
            await websocket.send_denial_response(
                Response(
                    bytes(refusal.body or b"")[:_MAX_REFUSAL_BYTES],
                    refusal.status_code,
                    media_type=refusal.headers.get("Content-Type"),
                )
            )
            return
        except (OSError, WebSocketException, ValueError):
            self.failed += 1
            await websocket.close(TRY_AGAIN)
            return
        self.passed += 1
        try:
            await websocket.accept(other.subprotocol)
            await splice(websocket, other)
        finally:
            await other.close()
            await close_quietly(websocket, other.close_code or GOING_AWAY)

    async def _response(self, answer: httpx.Response) -> Response:
        response: Response
        if answer.status_code == _UNAUTHENTICATED:
            content = await _content(answer)
            if _UNKNOWN_RELAY in content:
                # Not the agent is unknown, which would end its work.
                self.failed += 1
                raise UpstreamRefusedError(_REFUSAL)
            response = Response(content, answer.status_code)
        else:
            response = StreamingResponse(answer.aiter_raw(), answer.status_code)
        self.passed += 1
        response.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.lower() not in _NOT_RETURNED
        ]
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._for_agents.aclose()
        await self._for_others.aclose()

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        named = {
            name.strip().lower()
            for key, value in headers
            if key == b"connection"
            for name in value.split(b",")
        }
        passed = [
            # Spaces at the end of a value are no part of it, and not accepted where it goes.
            (name, value.strip())
            for name, value in headers
            if name not in _NOT_PASSED and name not in named
        ]
        client = scope.get("client")
        if client:
            passed.append((ADDRESS_HEADER.encode(), client[0].encode()))
        shown = (scope.get("extensions") or {}).get("tls")
        for pem in shown["client_cert_chain"] if shown else ():
            passed.append((CERTIFICATE_HEADER.encode(), quote(pem, safe="").encode()))
            break
        return [*passed, (TOKEN_HEADER.encode(), self._token)]


async def _content(answer: httpx.Response) -> bytes:
    content = b""
    try:
        async for chunk in answer.aiter_raw():
            content += chunk
            if len(content) > _MAX_REFUSAL_BYTES:
                raise UpstreamAwayError("The portal's answer is too long. Send again later.")
    except httpx.HTTPError as error:
        raise UpstreamAwayError("The portal broke its answer off. Send again later.") from error
    return content


def _transport(tls: ssl.SSLContext | None, max_connections: int) -> httpx.AsyncHTTPTransport:
    limits = httpx.Limits(
        max_connections=max_connections,
        max_keepalive_connections=max_connections,
        keepalive_expiry=IDLE_SECONDS,
    )
    return httpx.AsyncHTTPTransport(verify=tls or False, limits=limits)

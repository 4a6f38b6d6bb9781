"""What passing requests on has in common, to jobs and to other processes of the portal."""

import asyncio
from contextlib import suppress

from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection

# Of one connection, RFC 9110; and what a proxy sets itself.
OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade x-forwarded-for x-forwarded-proto x-forwarded-host".split()
)
WEBSOCKET_ONLY = b"sec-websocket-"
# A message is held in memory as a whole; uvicorn bounds those of browsers alike.
MAX_MESSAGE_BYTES = 16 * 2**20
# How long a server may take for the beginning of a response, and between two parts.
RESPONSE_SECONDS = 300.0
# Jupyter answers the handshake of a kernel's WebSocket once the kernel has started.
OPEN_SECONDS = 120.0
# How a WebSocket ends whose other side went, or can't be reached now (RFC 6455).
GOING_AWAY, TRY_AGAIN = 1001, 1013
# These say that a side has sent no code, as when it broke off.
_NEVER_SENT = frozenset({1005, 1006, 1015})


def host_header(scope: Scope) -> bytes:
    """Return the host that a request names, with its port."""
    return next((value for name, value in scope["headers"] if name == b"host"), b"")


def target_path(scope: Scope) -> str:
    """Return the path and the query of a request, as they came."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


def handshake_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers of a WebSocket's handshake that a new one does not set itself."""
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if not name.startswith(WEBSOCKET_ONLY) and name != b"host"
    ]


async def splice(websocket: WebSocket, other: ClientConnection) -> None:
    """Pass messages on both ways until one side closes."""

    async def up() -> None:
        while (message := await websocket.receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            await other.send(message["text"] if data is None else data)

    async def down() -> None:
        async for message in other:
            if isinstance(message, str):
                await websocket.send_text(message)
            else:
                await websocket.send_bytes(message)

    tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close_quietly(websocket: WebSocket, code: int) -> None:
    """Close a WebSocket that may be closed already, with the code of the other side's end."""
    code = GOING_AWAY if code in _NEVER_SENT else code
    with suppress(RuntimeError, WebSocketDisconnect):
        await websocket.close(code)

"""`/agent/v1/transfer`: bytes that mean nothing, by which an agent times its line to this door.

A *slot* is the right to move bytes. There are few, and an appliance has one at most, so that speed
tests never crowd out samples; who finds none is asked to come back later.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from access.auth import Authenticator
from access.errors import BadRequestError
from core.errors import OverloadedError, TooLargeError
from jobqueue.executors.wire import MAX_TRANSFER_BYTES, TransferReply

AT_ONCE = 3
TIME_LIMIT_SECONDS = 60.0
RETRY_AFTER_SECONDS = 60
CHUNK_BYTES = 64 * 1024
# Farther apart than any common compression looks back, so that no proxy shortens the way.
NOISE_BYTES = 16 * CHUNK_BYTES
_MAX_DIGITS = 18


class TransferEndpoints:
    """Sends and takes bytes. For the tasks of one event loop.

    Args:
        authenticator: finds the agent behind a request.
        at_once: how many transfers this process serves at the same time.
        time_limit_seconds: a transfer that takes longer is broken off.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        at_once: int = AT_ONCE,
        time_limit_seconds: float = TIME_LIMIT_SECONDS,
    ) -> None:
        self._authenticator = authenticator
        self._at_once = at_once
        self._time_limit_seconds = time_limit_seconds
        self._holders: set[str] = set()
        self._noise = os.urandom(NOISE_BYTES)

    async def download(self, request: Request) -> Response:
        """Send `size_bytes` bytes that can't be compressed."""
        agent = await self._authenticator.agent(request)
        size_bytes = _size_bytes(request)
        self._require_slot(agent.appliance_id)
        return _NoiseResponse(self, agent.appliance_id, size_bytes=size_bytes)

    async def upload(self, request: Request) -> Response:
        """Read a body, forget it, and say how long it was."""
        agent = await self._authenticator.agent(request)
        announced = request.headers.get("Content-Length", "")
        if announced.isdecimal() and int(announced) > MAX_TRANSFER_BYTES:
            raise _too_large()
        with self.slot(agent.appliance_id):
            try:
                async with asyncio.timeout(self._time_limit_seconds):
                    received_bytes = await _drain(request)
            except TimeoutError as error:
                raise BadRequestError(
                    f"The transfer took longer than {self._time_limit_seconds:g} seconds. "
                    "Send fewer bytes.",
                    code="too_slow",
                ) from error
        reply = TransferReply(received_bytes=received_bytes)
        return Response(msgspec.json.encode(reply), media_type="application/json")

    @contextmanager
    def slot(self, appliance_id: str) -> Iterator[None]:
        """Hold a slot for the length of the block.

        Raises:
            OverloadedError: none is free, or the appliance holds one.
        """
        self._require_slot(appliance_id)
        self._holders.add(appliance_id)
        try:
            yield
        finally:
            self._holders.discard(appliance_id)

    async def send_noise(self, send: Send, size_bytes: int) -> None:
        """Send a body of so many bytes; one that takes too long is left unfinished."""
        noise, left_bytes, offset = memoryview(self._noise), size_bytes, 0
        try:
            async with asyncio.timeout(self._time_limit_seconds):
                while left_bytes > CHUNK_BYTES:
                    chunk = bytes(noise[offset : offset + CHUNK_BYTES])
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    left_bytes -= CHUNK_BYTES
                    offset = (offset + CHUNK_BYTES) % NOISE_BYTES
                last = bytes(noise[offset : offset + left_bytes])
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            return  # the length was announced, so the agent sees that it is cut off

    def _require_slot(self, appliance_id: str) -> None:
        if appliance_id in self._holders or len(self._holders) >= self._at_once:
            raise OverloadedError(
                "Other transfers are under way. Try again in a minute.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )


class _NoiseResponse(Response):
    """A body that is made while it is sent; the slot is held for as long as that takes."""

    def __init__(self, endpoints: TransferEndpoints, appliance_id: str, *, size_bytes: int) -> None:
        headers = {
            "Content-Length": str(size_bytes),
            "Cache-Control": "no-store, no-transform",
            # A proxy that takes the whole body first would be timed instead of the line.
            "X-Accel-Buffering": "no",
        }
        super().__init__(headers=headers, media_type="application/octet-stream")
        self._endpoints = endpoints
        self._appliance_id = appliance_id
        self._size_bytes = size_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        del scope, receive
        with self._endpoints.slot(self._appliance_id):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await self._endpoints.send_noise(send, self._size_bytes)


async def _drain(request: Request) -> int:
    received_bytes = 0
    async for piece in request.stream():
        received_bytes += len(piece)
        if received_bytes > MAX_TRANSFER_BYTES:
            raise _too_large()
    return received_bytes


def _size_bytes(request: Request) -> int:
    text = request.query_params.get("size_bytes", "")
    if not (text.isascii() and text.isdecimal()):
        raise BadRequestError(
            f"size_bytes is {text[:50]!r}; give the number of bytes to send, such as "
            "?size_bytes=1048576."
        )
    if len(text) > _MAX_DIGITS or int(text) > MAX_TRANSFER_BYTES:
        raise _too_large()
    return int(text)


def _too_large() -> TooLargeError:
    return TooLargeError(f"A transfer moves {MAX_TRANSFER_BYTES} bytes at most. Ask for fewer.")

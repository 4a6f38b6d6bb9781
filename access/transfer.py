"""`/agent/v1/transfer`: downloads and uploads of random bytes for agents' speed tests.

A transfer needs a *slot*. There are few, and an appliance has one at most, so that speed tests do
not crowd out samples; without a free slot the response is 429.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from access.errors import BadRequestError
from access.identity.auth import Authenticator
from core.errors import OverloadedError, TooLargeError
from protocol.transfer import MAX_TRANSFER_BYTES, TransferReply

MAX_CONCURRENT = 3
TIME_LIMIT_SECONDS = 60.0
RETRY_AFTER_SECONDS = 60
CHUNK_BYTES = 64 * 1024
# Longer than the window of any common compression, so that no proxy can compress it.
NOISE_BYTES = 16 * CHUNK_BYTES
_MAX_DIGITS = 18


class TransferEndpoints:
    """Sends and receives bytes, and aborts transfers at the time limit. For one event loop."""

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        time_limit_seconds: float = TIME_LIMIT_SECONDS,
    ) -> None:
        self._authenticator = authenticator
        self._time_limit_seconds = time_limit_seconds
        self._active: set[str] = set()
        self._noise = os.urandom(NOISE_BYTES)

    async def download(self, request: Request) -> Response:
        """Send `size_bytes` incompressible bytes."""
        agent = await self._authenticator.agent(request)
        size_bytes = _size_bytes(request)
        self._require_slot(agent.appliance_id)
        return _NoiseResponse(self, agent.appliance_id, size_bytes=size_bytes)

    async def upload(self, request: Request) -> Response:
        """Read a body, discard it, and return its size."""
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
                    f"The transfer took longer than {self._time_limit_seconds:g} s. "
                    "Send fewer bytes.",
                    code="too_slow",
                ) from error
        reply = TransferReply(received_bytes=received_bytes)
        return Response(msgspec.json.encode(reply), media_type="application/json")

    @contextmanager
    def slot(self, appliance_id: str) -> Iterator[None]:
        """Use a slot for the duration of the block.

        Raises:
            OverloadedError: none is free, or the appliance has one already.
        """
        self._require_slot(appliance_id)
        self._active.add(appliance_id)
        try:
            yield
        finally:
            self._active.discard(appliance_id)

    async def send_noise(self, send: Send, size_bytes: int) -> None:
        """Send a body of random bytes; stop at the time limit."""
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
            return  # the agent sees from Content-Length that it is truncated

    def _require_slot(self, appliance_id: str) -> None:
        if appliance_id in self._active or len(self._active) >= MAX_CONCURRENT:
            raise OverloadedError(
                "Other transfers are running. Try again in a minute.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )


class _NoiseResponse(Response):
    """A body that is generated while it is sent, with a slot."""

    def __init__(self, endpoints: TransferEndpoints, appliance_id: str, *, size_bytes: int) -> None:
        headers = {
            "Content-Length": str(size_bytes),
            "Cache-Control": "no-store, no-transform",
            # A proxy that buffers the body would falsify the measurement.
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
    async for chunk in request.stream():
        received_bytes += len(chunk)
        if received_bytes > MAX_TRANSFER_BYTES:
            raise _too_large()
    return received_bytes


def _size_bytes(request: Request) -> int:
    text = request.query_params.get("size_bytes", "")
    if not (text.isascii() and text.isdecimal()):
        raise BadRequestError(
            f"size_bytes is {text[:50]!r}; use a number of bytes, such as ?size_bytes=1048576."
        )
    if len(text) > _MAX_DIGITS or int(text) > MAX_TRANSFER_BYTES:
        raise _too_large()
    return int(text)


def _too_large() -> TooLargeError:
    return TooLargeError(f"A transfer has at most {MAX_TRANSFER_BYTES} bytes. Request fewer.")

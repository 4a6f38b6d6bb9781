"""The portal as a relay reaches it: connections, the state of the way, requests for itself."""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

import httpx
import msgspec
from isal import igzip

from core.network_errors import why_it_failed
from protocol.relays import (
    PREFIX,
    TOKEN_HEADER,
    ChangesReply,
    ChangesRequest,
    RegistrySnapshot,
    RelayedOutcome,
    RelayedOutcomes,
    RelayedWrite,
    RelayedWrites,
    RelayReport,
)
from relay.errors import (
    UpstreamAwayError,
    UpstreamBusyError,
    UpstreamFailedError,
    UpstreamRefusedError,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
# Agents wait ten seconds for an answer.
ANSWER_SECONDS = 5.0
SAMPLES_SECONDS = 30.0
# What the portal stores at least, of writes for which nobody waits.
SLOW_BYTES_PER_SECOND = 256 * 1024
MAX_CONNECTIONS = 16
# Shorter than proxies and the portal leave connections open.
IDLE_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 2**20
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 5.0
GROUP_BYTES = 4 * 2**20
MIN_GROUP_BYTES = 64 * 1024
QUICK_SECONDS = 1.0
_OK, _NO_CONTENT = 200, 204
_REFUSED = frozenset({401, 403})
_TOO_LARGE, _TOO_MANY, _FAILED = 413, 429, 500
# Smaller requests fit into a packet without compression.
_PACKED_FROM_BYTES = 1024
# Above it, a thread compresses.
_THREAD_ABOVE_BYTES = 64 * 1024
_JSON, _MSGPACK = "application/json", "application/msgpack"
_LATENCY_WEIGHT = 0.2
_LEVEL = 1


class State(StrEnum):
    """What the last request of the relay itself met."""

    UP = "up"
    AWAY = "away"
    REFUSED = "refused"


class Upstream:
    """Sends the relay's own requests. For the tasks of one event loop.

    Args:
        url: of the portal, without a trailing slash.
        token: of the relay.
        tls: how the portal's certificate is verified; None without TLS.
        monotonic: seconds of a clock.

    Attributes:
        state: what the last request met; the portal is thought to be up at first.
        reason: why it is not up, a sentence.
        group_bytes: the largest request of samples that the way to the portal copes with.
        latency_seconds: how long requests of samples take, as a moving average.
        stored: how many writes the portal has stored.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.token = token
        self.tls = tls
        self.state = State.UP
        self.reason = ""
        self.group_bytes = self._max_group_bytes = GROUP_BYTES
        self.latency_seconds = 0.0
        self.stored = 0
        self._monotonic = monotonic
        self._retry_at = 0.0
        self._backoff_seconds = FIRST_RETRY_SECONDS
        limits = httpx.Limits(
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
        )
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={TOKEN_HEADER: token},
            limits=limits,
            verify=tls or False,
            trust_env=False,
        )

    @property
    def is_up(self) -> bool:
        """Whether the last request was answered."""
        return self.state is State.UP

    @property
    def wait_seconds(self) -> float:
        """How long to wait before the next attempt; 0 while the portal is up."""
        return 0.0 if self.is_up else max(0.0, self._retry_at - self._monotonic())

    async def registry(self, revision: str, *, wait_seconds: float) -> RegistrySnapshot | None:
        """Return the registry once its revision is another one; None after the wait.

        Raises:
            UpstreamAwayError: the portal does not answer.
            UpstreamRefusedError: it does not accept the token.
        """
        status, content = await self._request(
            "GET",
            "registry",
            parameters={"revision": revision, "wait_seconds": f"{wait_seconds:g}"},
            answer_seconds=wait_seconds + ANSWER_SECONDS,
        )
        return None if status == _NO_CONTENT else self._decoded(content, RegistrySnapshot)

    async def changes(self, request: ChangesRequest) -> list[str]:
        """Return the appliances whose generation is another one; none after the wait.

        Raises:
            UpstreamAwayError: the portal does not answer.
            UpstreamRefusedError: it does not accept the token.
        """
        status, content = await self._request(
            "POST",
            "changes",
            content=msgspec.json.encode(request),
            answer_seconds=request.wait_seconds + ANSWER_SECONDS,
        )
        return [] if status == _NO_CONTENT else self._decoded(content, ChangesReply).changed

    async def report(self, report: RelayReport) -> None:
        """Send how the relay is doing.

        Raises:
            UpstreamAwayError: the portal does not answer.
            UpstreamRefusedError: it does not accept the token.
        """
        with self._noted():
            await self._request("POST", "report", content=msgspec.json.encode(report))

    async def samples(
        self, writes: Sequence[RelayedWrite], *, is_patient: bool = False
    ) -> list[RelayedOutcome]:
        """Send writes, up to `group_bytes` at once; return their outcomes in order.

        Args:
            writes: of any agents.
            is_patient: whether no agent waits, so that large ones may take longer.

        Raises:
            UpstreamAwayError: the portal does not answer, or fails; it may have stored them.
            UpstreamRefusedError: it does not accept the token.
        """
        began = self._monotonic()
        size = sum(len(write.body) for write in writes)
        answer_seconds = ANSWER_SECONDS + (size / SLOW_BYTES_PER_SECOND if is_patient else 0.0)
        try:
            with self._noted():
                outcomes = await self._timed_samples(writes, answer_seconds)
        except UpstreamAwayError:
            if self._monotonic() - began >= ANSWER_SECONDS:
                # Too much for the way, perhaps: smaller requests take less time.
                self.group_bytes = max(MIN_GROUP_BYTES, min(self.group_bytes, size // 2))
            raise
        taken = self._monotonic() - began
        self.stored += sum(outcome.status == _NO_CONTENT for outcome in outcomes)
        self.latency_seconds += _LATENCY_WEIGHT * (taken - self.latency_seconds)
        if taken < QUICK_SECONDS and 2 * size > self.group_bytes:
            self.group_bytes = min(2 * self.group_bytes, self._max_group_bytes)
        return outcomes

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note in the state whether the requests of the block were answered."""
        try:
            yield
        except UpstreamBusyError:
            raise
        except (UpstreamAwayError, UpstreamRefusedError) as error:
            self._note_failure(error)
            raise
        if not self.is_up:
            log.info("the portal at %s answers again", self.url)
        self.state, self.reason = State.UP, ""
        self._backoff_seconds = FIRST_RETRY_SECONDS

    def _note_failure(self, error: UpstreamAwayError | UpstreamRefusedError) -> None:
        state = State.AWAY if isinstance(error, UpstreamAwayError) else State.REFUSED
        if state is not self.state:
            log.warning("%s", error.message)
        self.state, self.reason = state, error.message
        self._retry_at = self._monotonic() + self._backoff_seconds
        self._backoff_seconds = min(2 * self._backoff_seconds, LAST_RETRY_SECONDS)

    async def _timed_samples(
        self, writes: Sequence[RelayedWrite], answer_seconds: float
    ) -> list[RelayedOutcome]:
        seconds = SAMPLES_SECONDS + answer_seconds - ANSWER_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await self._samples(writes, answer_seconds)
        except TimeoutError as error:
            raise UpstreamAwayError(
                f"The portal at {self.url} took more than {seconds:.0f} s."
            ) from error

    async def _samples(
        self, writes: Sequence[RelayedWrite], answer_seconds: float
    ) -> list[RelayedOutcome]:
        content = msgspec.msgpack.encode(RelayedWrites(writes=list(writes)))
        size = len(content)
        is_packed = size >= _PACKED_FROM_BYTES
        if size > _THREAD_ABOVE_BYTES:
            content = await asyncio.to_thread(igzip.compress, content, _LEVEL)
        elif is_packed:
            content = igzip.compress(content, _LEVEL)
        status, answer = await self._request(
            "POST",
            "samples",
            content=content,
            headers={"Content-Encoding": "gzip"} if is_packed else {},
            answer_seconds=answer_seconds,
            accepted=frozenset({_OK, _TOO_LARGE}),
        )
        if status == _TOO_LARGE:
            if len(writes) == 1:
                return [RelayedOutcome(status=status, body=answer)]
            smaller = max(MIN_GROUP_BYTES, min(self.group_bytes, size // 2))
            self.group_bytes = self._max_group_bytes = smaller
            log.warning(
                "requests of %d bytes are too large for the portal or its proxy; sending smaller",
                len(content),
            )
            half = len(writes) // 2
            return [
                *await self._samples(writes[:half], answer_seconds),
                *await self._samples(writes[half:], answer_seconds),
            ]
        outcomes = self._decoded(answer, RelayedOutcomes).outcomes
        if len(outcomes) != len(writes):
            raise UpstreamAwayError(
                f"The portal at {self.url} answered {len(outcomes)} of {len(writes)} writes."
            )
        return outcomes

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        parameters: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        answer_seconds: float | None = None,
        accepted: frozenset[int] = frozenset({_OK, _NO_CONTENT}),
    ) -> tuple[int, bytes]:
        timeout = httpx.Timeout(
            ANSWER_SECONDS, connect=CONNECT_SECONDS, read=answer_seconds or ANSWER_SECONDS
        )
        request = self._client.build_request(
            method,
            PREFIX + path,
            content=content,
            params=parameters,
            timeout=timeout,
            headers={"Content-Type": _MSGPACK if path == "samples" else _JSON, **(headers or {})},
        )
        try:
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # The process that had the connection has ended; another may answer.
                response = await self._client.send(request, stream=True)
            try:
                answer = await self._content(response)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise UpstreamAwayError(
                f"The portal at {self.url} does not answer: {why_unreachable(error)}."
            ) from error
        if response.status_code in accepted:
            return response.status_code, answer
        if response.status_code == _FAILED and path == "samples":
            raise UpstreamFailedError(f"The portal at {self.url} failed on a request (status 500).")
        raise self._rejection(response)

    async def _content(self, response: httpx.Response) -> bytes:
        chunks, size = [], 0
        async for chunk in response.aiter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamAwayError(f"The answer of the portal at {self.url} does not end.")
        return b"".join(chunks)

    def _decoded(self, content: bytes, kind: type[T]) -> T:
        decode = msgspec.msgpack.decode if kind is RelayedOutcomes else msgspec.json.decode
        try:
            return decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise UpstreamAwayError(
                f"What answers at {self.url} is no portal with relays: {error}."
            ) from error

    def _rejection(self, response: httpx.Response) -> UpstreamAwayError | UpstreamRefusedError:
        status = response.status_code
        if status in _REFUSED:
            return UpstreamRefusedError(
                f"The portal at {self.url} refuses this relay's token (status {status}). Create a "
                "new one there, and set it as the relay's token."
            )
        message = f"The portal at {self.url} can't answer now (status {status})."
        return UpstreamBusyError(message) if status == _TOO_MANY else UpstreamAwayError(message)


def why_unreachable(error: httpx.HTTPError) -> str:
    """Return why a request failed as a phrase; the library's own messages rarely have it."""
    if isinstance(error, httpx.TimeoutException):
        return why_it_failed(TimeoutError())
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    if type(cause) is OSError or isinstance(cause, ConnectionError):
        return os.strerror(cause.errno).lower() if cause.errno else str(error)
    return why_it_failed(cause if isinstance(cause, OSError) else error)

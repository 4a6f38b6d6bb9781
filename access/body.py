"""Request bodies: read with a bound, unpacked with a bound, decoded with every fault named."""

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

import msgspec
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from isal import isal_zlib
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from access.errors import BadRequestError, UnsupportedEncodingError
from core.errors import InvalidInputError, TooLargeError

T = TypeVar("T")

# Above this, unpacking and parsing leave the event loop for a thread.
THREAD_ABOVE_BYTES = 32 * 1024
_PLAIN, _GZIPPED = frozenset({b"", b"identity"}), frozenset({b"gzip", b"x-gzip"})
_GZIP = 16 + isal_zlib.MAX_WBITS
_ONE_AT_A_TIME: RunVar[CapacityLimiter] = RunVar("one_at_a_time")


async def receive_body(
    headers: Mapping[bytes, bytes], receive: Receive, *, max_bytes: int
) -> bytes:
    """Return the body, unpacked where it came gzipped.

    Args:
        headers: the request's, by their names in small letters.
        receive: as ASGI gives it.
        max_bytes: how large the body may be.

    Raises:
        TooLargeError: it has more than `max_bytes`, packed or unpacked.
        BadRequestError: it is not whole gzip.
        UnsupportedEncodingError: it came in another encoding.
    """
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in _PLAIN | _GZIPPED:
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding.decode('latin-1')!r} is not known here. "
            "Send gzip, or send it plain."
        )
    packed = await _read(headers, receive, max_bytes=max_bytes)
    if encoding in _PLAIN:
        return packed
    if len(packed) > THREAD_ABOVE_BYTES:
        work = partial(gunzip, packed, max_bytes=max_bytes)
        return await to_thread.run_sync(work, limiter=one_at_a_time())
    return gunzip(packed, max_bytes=max_bytes)


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the body of a request, as `receive_body` does."""
    headers = dict(reversed(request.scope["headers"]))  # of several of one name the first counts
    return await receive_body(headers, request.receive, max_bytes=max_bytes)


async def read_struct(request: Request, kind: type[T], *, max_bytes: int) -> T:
    """Return the JSON body as `kind`.

    Raises:
        BadRequestError: it is not JSON.
        InvalidInputError: it is JSON of another shape; names the field.
    """
    body = await read_body(request, max_bytes=max_bytes)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        fault, _, path = str(error).replace("`", "").partition(" - at ")
        field = path.removeprefix("$").removeprefix(".") or "body"
        raise InvalidInputError(
            f"{field}: {fault}. Check the agent's version.", errors={field: [fault]}
        ) from error
    except msgspec.DecodeError as error:
        raise BadRequestError(f"The body is not JSON: {error}.", code="bad_json") from error


def one_at_a_time() -> CapacityLimiter:
    """Return what lets one large body at a time be worked on in a thread.

    More would have to share the interpreter, and cost more than they take one after the other.
    """
    try:
        return _ONE_AT_A_TIME.get()
    except LookupError:
        limiter = CapacityLimiter(1)
        _ONE_AT_A_TIME.set(limiter)
        return limiter


def gunzip(packed: bytes, *, max_bytes: int) -> bytes:
    """Return what gzip holds, never unpacking more than `max_bytes` and one.

    Raises:
        TooLargeError: there is more in it.
        BadRequestError: it is not gzip, or cut off.
    """
    unpacked = bytearray()
    rest = packed
    # One body may hold several gzip members, one behind the other.
    while rest:
        member = isal_zlib.decompressobj(_GZIP)
        try:
            unpacked += member.decompress(rest, max_bytes + 1 - len(unpacked))
        except isal_zlib.error as error:  # type: ignore[misc] # its stub has a variable
            raise BadRequestError(f"The body is not gzip: {error}.", code="bad_gzip") from error
        if len(unpacked) > max_bytes:
            raise _too_large(max_bytes)
        if not member.eof:
            raise BadRequestError("The gzip body is cut off. Send it whole.", code="bad_gzip")
        rest = member.unused_data
    return bytes(unpacked)


async def _read(headers: Mapping[bytes, bytes], receive: Receive, *, max_bytes: int) -> bytes:
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        has_more = message.get("more_body", False)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"The body is larger than the {max_bytes} bytes that this address takes. "
        "Send it in smaller parts."
    )

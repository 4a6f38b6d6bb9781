"""Request bodies: read with a bound, unpacked with a bound, decoded with every fault named."""

import zlib
from typing import TypeVar

import msgspec
from anyio import to_thread
from starlette.requests import Request

from access.errors import BadRequestError, UnsupportedEncodingError
from core.errors import InvalidInputError, TooLargeError

T = TypeVar("T")

# Above this, unpacking and parsing leave the event loop for a thread.
THREAD_ABOVE_BYTES = 32 * 1024
_GZIP = 16 + zlib.MAX_WBITS


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the body, unpacked where it came gzipped.

    Raises:
        TooLargeError: it has more than `max_bytes`, packed or unpacked.
        BadRequestError: it is not whole gzip.
        UnsupportedEncodingError: it came in another encoding.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"identity", "", "gzip", "x-gzip"}:
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding!r} is not known here. Send gzip, or send it plain."
        )
    packed = await _read(request, max_bytes=max_bytes)
    if encoding in {"identity", ""}:
        return packed
    if len(packed) > THREAD_ABOVE_BYTES:
        return await to_thread.run_sync(lambda: gunzip(packed, max_bytes=max_bytes))
    return gunzip(packed, max_bytes=max_bytes)


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
        member = zlib.decompressobj(_GZIP)
        try:
            unpacked += member.decompress(rest, max_bytes + 1 - len(unpacked))
        except zlib.error as error:
            raise BadRequestError(f"The body is not gzip: {error}.", code="bad_gzip") from error
        if len(unpacked) > max_bytes:
            raise _too_large(max_bytes)
        if not member.eof:
            raise BadRequestError("The gzip body is cut off. Send it whole.", code="bad_gzip")
        rest = member.unused_data
    return bytes(unpacked)


async def _read(request: Request, *, max_bytes: int) -> bytes:
    announced = request.headers.get("Content-Length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"The body is larger than the {max_bytes} bytes that this address takes. "
        "Send it in smaller parts."
    )

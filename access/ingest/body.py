"""Request bodies: read and decompressed up to a limit, and decoded from JSON."""

import re
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
from anyio.lowlevel import RunVar
from isal import isal_zlib
from starlette.requests import Request

from access.errors import BadRequestError, UnsupportedEncodingError
from access.ingest.fair_worker import FairWorker
from core.errors import InvalidInputError, TooLargeError
from core.strict_json import decode_json

T = TypeVar("T")

# Editors and Windows programs put it before UTF-8.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Above this, bodies are decompressed and parsed in a thread instead of the event loop.
THREAD_ABOVE_BYTES = 32 * 1024
# A small body that is decompressed to more is, too.
_INLINE_BYTES = 512 * 1024
_PLAIN, _GZIPPED = frozenset({"", "identity"}), frozenset({"gzip", "x-gzip"})
# How msgspec reports a value above the limit of its type.
_ABOVE_LIMIT = re.compile(r"Expected (array|object|str) of length <= (\d+)")
_GZIP = 16 + isal_zlib.MAX_WBITS
# Clients send one member, some one for each of their batches. Each costs at least 3 microseconds.
MAX_GZIP_MEMBERS = 1000
# The bytes that follow a member are copied: up to this many.
_GZIP_CHUNK_BYTES = 32 * 1024
_FAIR_WORKER: RunVar[FairWorker] = RunVar("fair_worker")


async def read_body(request: Request, *, max_bytes: int, tenant_id: str) -> bytes:
    """Return the body of an authenticated request, decompressed if it is gzip.

    Args:
        request: its sender is known, so that its tenant is.
        max_bytes: limit of the body, compressed and decompressed.
        tenant_id: whose turn of the worker decompresses a large one.

    Raises:
        TooLargeError: it has more than `max_bytes`, compressed or decompressed.
        BadRequestError: it is not complete gzip.
        UnsupportedEncodingError: it has another encoding.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _PLAIN | _GZIPPED:
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding[:50]!r} is not supported. Send gzip or no encoding."
        )
    packed = await read_raw_body(request, max_bytes=max_bytes)
    if encoding in _PLAIN:
        return packed
    if len(packed) <= THREAD_ABOVE_BYTES:
        with suppress(TooLargeError):
            return gunzip(packed, max_bytes=min(max_bytes, _INLINE_BYTES))
    return await fair_worker().run(tenant_id, partial(gunzip, packed, max_bytes=max_bytes))


def unpacked_at_once(encoding: bytes, body: bytes, *, max_bytes: int) -> bytes | None:
    """Return a small body, decompressed if it is gzip; None if `read_body` must look at it.

    Raises:
        TooLargeError: it has more than what the event loop decompresses.
        BadRequestError: it is not complete gzip.
    """
    name = encoding.decode("latin-1").strip().lower()
    if name in _GZIPPED:
        return gunzip(body, max_bytes=min(max_bytes, _INLINE_BYTES))
    return body if name in _PLAIN else None


async def read_plain_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the body of a request whose sender is not known yet: nothing is decompressed.

    Raises:
        TooLargeError: it has more than `max_bytes`.
        UnsupportedEncodingError: it is compressed.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _PLAIN:
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding[:50]!r} is not supported here. Send the body uncompressed."
        )
    return await read_raw_body(request, max_bytes=max_bytes)


def decode_struct(body: bytes, kind: type[T]) -> T:
    """Return a JSON body as `kind`.

    Raises:
        MalformedJSONError: it is not JSON; names the byte or the field.
        InvalidInputError: it has another schema; names the field.
    """
    try:
        return decode_json(body, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).replace("`", "").partition(" - at ")
        field = path.removeprefix("$").removeprefix(".") or "body"
        advice = "Check the agent's version."
        if above := _ABOVE_LIMIT.fullmatch(problem):
            unit = "characters" if above[1] == "str" else "entries"
            problem, advice = f"has more than {above[2]} {unit}", "That is the portal's limit."
        raise InvalidInputError(
            f"{field}: {problem}. {advice}", errors={field: [problem]}
        ) from error


def fair_worker() -> FairWorker:
    """Return the worker for large bodies of this event loop."""
    try:
        return _FAIR_WORKER.get()
    except LookupError:
        worker = FairWorker()
        _FAIR_WORKER.set(worker)
        return worker


def gunzip(packed: bytes, *, max_bytes: int) -> bytes:
    """Return the decompressed data, without decompressing more than `max_bytes` and one.

    Raises:
        TooLargeError: it has more than `max_bytes`.
        BadRequestError: it is not gzip, or truncated.
    """
    unpacked = bytearray()
    view, position, members = memoryview(packed), 0, 0
    while position < len(packed):
        members += 1
        if members > MAX_GZIP_MEMBERS:
            raise BadRequestError(
                f"The body has more than {MAX_GZIP_MEMBERS} gzip members. Compress it as one.",
                code="bad_gzip",
            )
        member = isal_zlib.decompressobj(_GZIP)
        while not member.eof:
            if position >= len(packed):
                raise BadRequestError("The gzip body is truncated. Send it again.", code="bad_gzip")
            chunk = view[position : position + _GZIP_CHUNK_BYTES]
            try:
                unpacked += member.decompress(chunk, max_bytes + 1 - len(unpacked))
            except isal_zlib.error as error:  # type: ignore[misc] # its stub has a variable
                raise BadRequestError(f"The body is not gzip: {error}.", code="bad_gzip") from error
            if len(unpacked) > max_bytes:
                raise too_large(max_bytes)
            position += len(chunk) - len(member.unused_data)
    return bytes(unpacked)


async def read_raw_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the body as it was sent, whatever its encoding.

    Raises:
        TooLargeError: it has more than `max_bytes`.
    """
    announced = request.headers.get("Content-Length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise too_large(max_bytes)
    return b"".join(chunks)


def too_large(max_bytes: int) -> TooLargeError:
    """Return the error of a body that is too large."""
    return TooLargeError(
        f"The body is larger than the limit of {max_bytes} bytes. Send it in smaller parts."
    )

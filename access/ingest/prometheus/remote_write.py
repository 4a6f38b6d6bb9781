"""`POST /api/v1/prom/write`: Prometheus' remote_write, versions 1.0 and 2.0.

204 means that every sample is durable. Prometheus drops a whole request on 400, so its good samples
are stored anyway. Samples may arrive in any order. A stale marker or another NaN stands for no
value: there is nothing to store.

Source: https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/
"""

from collections.abc import Callable
from functools import partial

import cramjam
from starlette.requests import Request
from starlette.responses import Response

from access.errors import BadRequestError, UnsupportedEncodingError
from access.identity.auth import Authenticator
from access.ingest.body import THREAD_ABOVE_BYTES, fair_worker, read_raw_body, too_large
from access.ingest.gateway import WriteResult
from access.ingest.influx import error_of
from access.ingest.metrics import INGESTED_BYTES
from access.ingest.prometheus.messages import read_version_1, read_version_2
from access.ingest.prometheus.series import Read, Samples, SeriesCache, read_of
from access.ingest.prometheus.wire import MAX_MESSAGE_BYTES, WireError, read_varint
from access.ingest.receiver import PROMETHEUS, Receiver
from access.ingest.sender_series import SendersSeries

WRITE_PATH = "/api/v1/prom/write"
_MEDIA_TYPE = "application/x-protobuf"
_VERSIONS: dict[str, Callable[[bytes, SeriesCache], Samples]] = {
    "prometheus.WriteRequest": read_version_1,
    "io.prometheus.write.v2.Request": read_version_2,
}
_WRITTEN = "X-Prometheus-Remote-Write-{}-Written"


class RemoteWriteEndpoint:
    """Ingests samples from Prometheus, vmagent and whatever else speaks remote_write."""

    def __init__(
        self, authenticator: Authenticator, receiver: Receiver, *, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._receiver = receiver
        self._max_body_bytes = min(max_body_bytes, MAX_MESSAGE_BYTES)
        self._senders = SendersSeries()

    async def write(self, request: Request) -> Response:
        """Store the samples with the sender's identity."""
        sender = await self._authenticator.sender(request)
        reader = reader_of(request)
        packed = await read_raw_body(request, max_bytes=self._max_body_bytes)
        series = self._senders.of(sender)
        work = partial(self._read, packed, reader, series.cache)
        is_small = len(packed) <= THREAD_ABOVE_BYTES // 8
        samples, read = work() if is_small else await fair_worker().run(sender.tenant_id, work)
        result = await self._receiver.write_read(
            sender, read, series, program=PROMETHEUS, precision="ms"
        )
        response = (
            error_of(request, result, kind="sample") if result.errors else Response(status_code=204)
        )
        response.headers.update(written_headers(samples, read, result))
        return response

    def _read(
        self,
        packed: bytes,
        reader: Callable[[bytes, SeriesCache], Samples],
        cache: SeriesCache,
    ) -> tuple[Samples, Read]:
        body = unsnappy(packed, max_bytes=self._max_body_bytes)
        INGESTED_BYTES.inc(len(body))
        samples = reader(body, cache)
        return samples, read_of(samples, cache)


def reader_of(request: Request) -> Callable[[bytes, SeriesCache], Samples]:
    """Return the reader of the request's version.

    Raises:
        UnsupportedEncodingError: it has another type or compression than remote_write.
    """
    media_type, _, parameters = request.headers.get("Content-Type", "").partition(";")
    name, _, version = parameters.strip().partition("=")
    version = version.strip('" ') if name.strip().lower() == "proto" else "prometheus.WriteRequest"
    if media_type.strip().lower() != _MEDIA_TYPE or version not in _VERSIONS:
        raise UnsupportedEncodingError(
            f"Content-Type {request.headers.get('Content-Type', '')[:100]!r} is not supported. "
            f"Send {_MEDIA_TYPE} with one of the messages {', '.join(_VERSIONS)}."
        )
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding != "snappy":
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding[:50]!r} is not supported. Send snappy (block format)."
        )
    return _VERSIONS[version]


def unsnappy(packed: bytes, *, max_bytes: int) -> bytes:
    """Return decompressed data of snappy's block format, whose size is checked before.

    Raises:
        TooLargeError: it has more than `max_bytes`.
        BadRequestError: it is not snappy.
    """
    try:
        # The format begins with the size, and a decompressor doesn't write more.
        size, _ = read_varint(packed, 0)
        if size > max_bytes:
            raise too_large(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(packed))
    except (cramjam.DecompressionError, WireError) as error:
        raise BadRequestError(
            "The body is not snappy in its block format. Send it again.", code="bad_snappy"
        ) from error


def written_headers(samples: Samples, read: Read, result: WriteResult) -> dict[str, str]:
    """Return the headers by which senders of version 2.0 count what was stored."""
    failed = {error.line - 1 for error in result.errors}
    histograms = len(samples.histogram_rows) // 2
    failed_histograms = len({row for row in samples.histogram_rows if row in failed})
    floats = len(samples) - len(samples.histogram_rows)
    failed_floats = len(failed) - failed_histograms + read.infinite + result.left_out
    counts = {
        "Samples": floats - failed_floats,
        "Histograms": histograms - -(-failed_histograms // 2),
        "Exemplars": 0,
    }
    return {_WRITTEN.format(kind): str(max(0, count)) for kind, count in counts.items()}

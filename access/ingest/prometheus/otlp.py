"""`POST /v1/metrics`: OTLP over HTTP, in protocol buffers and JSON.

200 means that the good samples are durable; `partialSuccess` counts the data points that are not.
Senders drop a request on 400 and retry after 429 and 503.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from access.errors import UnsupportedEncodingError
from access.identity.auth import Authenticator
from access.ingest.body import THREAD_ABOVE_BYTES, fair_worker, read_body
from access.ingest.gateway import WriteResult
from access.ingest.influx import error_message
from access.ingest.metrics import INGESTED_BYTES
from access.ingest.prometheus.otlp_json import read_json
from access.ingest.prometheus.otlp_protobuf import OTLPReader
from access.ingest.prometheus.otlp_series import SampleColumns
from access.ingest.prometheus.series import Read, SeriesCache, read_of
from access.ingest.prometheus.wire import BYTES, MAX_MESSAGE_BYTES, VARINT, varint
from access.ingest.receiver import OTLP, Receiver
from access.ingest.sender_series import SendersSeries

METRICS_PATH = "/v1/metrics"
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


class OTLPEndpoint:
    """Ingests metrics from OpenTelemetry's SDKs and collectors."""

    def __init__(
        self, authenticator: Authenticator, receiver: Receiver, *, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._receiver = receiver
        self._max_body_bytes = min(max_body_bytes, MAX_MESSAGE_BYTES)
        self._senders = SendersSeries()

    async def write(self, request: Request) -> Response:
        """Store the data points with the sender's identity."""
        sender = await self._authenticator.sender(request)
        media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media_type not in {_PROTOBUF, _JSON}:
            raise UnsupportedEncodingError(
                f"Content-Type {media_type[:50]!r} is not supported. Send {_PROTOBUF} or {_JSON}."
            )
        body = await read_body(request, max_bytes=self._max_body_bytes, tenant_id=sender.tenant_id)
        INGESTED_BYTES.inc(len(body))
        series = self._senders.of(sender)
        work = partial(_read, body, series.cache, is_json=media_type == _JSON)
        is_small = len(body) <= THREAD_ABOVE_BYTES
        columns, read = work() if is_small else await fair_worker().run(sender.tenant_id, work)
        result = await self._receiver.write_read(sender, read, series, program=OTLP)
        return _response(columns, result, is_json=media_type == _JSON)


def _read(body: bytes, cache: SeriesCache, *, is_json: bool) -> tuple[SampleColumns, Read]:
    columns = read_json(body, cache) if is_json else OTLPReader(cache).read(body)
    return columns, read_of(columns.samples(), cache)


def _response(columns: SampleColumns, result: WriteResult, *, is_json: bool) -> Response:
    """Return an `ExportMetricsServiceResponse`."""
    rejected = len({columns.points[error.line - 1] for error in result.errors})
    message = error_message(result, kind="sample") if rejected else ""
    if is_json:
        partial_success = {"rejectedDataPoints": str(rejected), "errorMessage": message}
        content = msgspec.json.encode({"partialSuccess": partial_success} if rejected else {})
        return Response(content, media_type=_JSON)
    if not rejected:
        return Response(b"", media_type=_PROTOBUF)
    text = message.encode()
    partial_message = bytes((1 << 3 | VARINT,)) + varint(rejected)
    partial_message += bytes((2 << 3 | BYTES,)) + varint(len(text)) + text
    content = bytes((1 << 3 | BYTES,)) + varint(len(partial_message)) + partial_message
    return Response(content, media_type=_PROTOBUF)

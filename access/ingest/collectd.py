"""POST /collectd: the JSON and Command formats of collectd's write_http.

collectd ignores the response and never retries, so valid values are stored whatever the others are,
and errors are logged as well as returned.
"""

import logging

from starlette.requests import Request
from starlette.responses import Response

from access.errors import UnsupportedEncodingError
from access.identity.agent_registry import Agent
from access.identity.auth import Authenticator
from access.ingest.body import BYTE_ORDER_MARK, THREAD_ABOVE_BYTES, fair_worker, read_body
from access.ingest.collectd_formats import read_commands, read_json
from access.ingest.collectd_values import CollectdError, PointMaker
from access.ingest.influx import error_message, error_of, left_out_header
from access.ingest.metrics import INGESTED_BYTES
from access.ingest.receiver import COLLECTD, Receiver
from core.clock import Clock, to_ns
from timeseries.points import Batch, Point

logger = logging.getLogger(__name__)

_TRUE = frozenset({"1", "true", "yes", "on"})
_JSON, _TEXT = "application/json", "text/plain"


class CollectdEndpoint:
    """Ingests values from collectd."""

    def __init__(
        self, authenticator: Authenticator, receiver: Receiver, *, clock: Clock, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._receiver = receiver
        self._clock = clock
        self._max_body_bytes = max_body_bytes

    async def write(self, request: Request) -> Response:
        """Store the body's values with the sender's identity."""
        sender = await self._authenticator.sender(request)
        are_rates = request.query_params.get("rates", "").lower() in _TRUE
        media_type = request.headers.get("Content-Type", _TEXT).partition(";")[0].strip().lower()
        if media_type not in {_JSON, _TEXT}:
            raise UnsupportedEncodingError(
                f"Content-Type {media_type[:50]!r} is not supported. collectd's write_http sends "
                f'{_JSON} with Format "JSON", {_TEXT} with Format "Command".'
            )
        body = await read_body(request, max_bytes=self._max_body_bytes, tenant_id=sender.tenant_id)
        INGESTED_BYTES.inc(len(body))
        body = body.removeprefix(BYTE_ORDER_MARK)
        # Notifications are JSON in either format, with the media type of the format.
        is_json = media_type == _JSON or body.lstrip()[:1] == b"["
        # Nothing is the host's name, so that all samples of a write token have the tag `host`.
        own_name = sender.name if isinstance(sender, Agent) else ""
        maker = PointMaker(own_name, are_rates=are_rates)
        now_ns = to_ns(self._clock())
        if len(body) <= THREAD_ABOVE_BYTES:
            batch, errors = read_batch(body, maker, is_json=is_json, now_ns=now_ns)
        else:
            batch, errors = await fair_worker().run(
                sender.tenant_id, lambda: read_batch(body, maker, is_json=is_json, now_ns=now_ns)
            )
        result = await self._receiver.write(
            sender, batch, errors=errors, program=COLLECTD, precision="s"
        )
        kind = "item" if is_json else "line"
        if not result.errors:
            # collectd treats any status but 200 as an error.
            return Response(headers=left_out_header(result))
        logger.warning(
            "collectd of %r: %s", own_name or sender.tenant_id, error_message(result, kind=kind)
        )
        return error_of(request, result, kind=kind)


def read_batch(
    body: bytes, maker: PointMaker, *, is_json: bool, now_ns: int
) -> tuple[Batch, dict[int, str]]:
    """Return the points of a body, and its errors by position.

    Raises:
        BadRequestError: it should be a JSON array and is not.
    """
    placed: list[tuple[int, Point]] = []
    errors: dict[int, str] = {}
    for position, value_list in (read_json if is_json else read_commands)(body, now_ns=now_ns):
        if isinstance(value_list, CollectdError):
            errors[position] = str(value_list)
        else:
            point = maker.point(value_list)
            if point is not None:
                placed.append((position, point))
    return Batch.from_positioned(placed), errors

"""POST /collectd: what collectd's write_http sends, in its JSON and its Command format.

collectd ignores the answer and sends nothing twice, so what is good is stored whatever the rest
is, and what is not is logged here besides being told.
"""

import logging

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from access.auth import Authenticator
from access.body import THREAD_ABOVE_BYTES, read_body
from access.collectd_commands import read_commands
from access.collectd_json import read_json
from access.collectd_values import PointMaker, ValueFaultError
from access.errors import UnsupportedEncodingError
from access.gateway import Gateway
from access.write import answer, sentence_of
from core.clock import Clock, to_ns
from timeseries.batch import Batch
from timeseries.points import Point

logger = logging.getLogger(__name__)

_TRUE = frozenset({"1", "true", "yes", "on"})
_JSON, _TEXT = "application/json", "text/plain"


class CollectdEndpoint:
    """Takes the readings of a collectd into the store."""

    def __init__(
        self, authenticator: Authenticator, gateway: Gateway, *, clock: Clock, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._gateway = gateway
        self._clock = clock
        self._max_body_bytes = max_body_bytes

    async def write(self, request: Request) -> Response:
        """Store the body's readings, stamped with who sent them."""
        agent = await self._authenticator.agent(request)
        are_rates = request.query_params.get("rates", "").lower() in _TRUE
        media_type = request.headers.get("Content-Type", _TEXT).partition(";")[0].strip().lower()
        if media_type not in {_JSON, _TEXT}:
            raise UnsupportedEncodingError(
                f"Content-Type {media_type[:50]!r} is not known here. collectd's write_http sends "
                f'{_JSON} with Format "JSON", {_TEXT} with Format "Command".'
            )
        body = await read_body(request, max_bytes=self._max_body_bytes)
        # Notifications are JSON in either format, and announced by the format's type.
        is_json = media_type == _JSON or body.lstrip()[:1] == b"["
        maker = PointMaker(agent.name, are_rates=are_rates)
        now_ns = to_ns(self._clock())
        if len(body) <= THREAD_ABOVE_BYTES:
            batch, faults = read_batch(body, maker, is_json=is_json, now_ns=now_ns)
        else:
            batch, faults = await to_thread.run_sync(
                lambda: read_batch(body, maker, is_json=is_json, now_ns=now_ns)
            )
        outcome = await self._gateway.take(agent, batch, faults=faults, precision="s")
        kind = "item" if is_json else "line"
        if not outcome.faults:
            return Response()  # collectd takes any status but 200 for an error
        logger.warning("collectd of %r: %s", agent.name, sentence_of(outcome, kind=kind))
        return answer(request, outcome, kind=kind)


def read_batch(
    body: bytes, maker: PointMaker, *, is_json: bool, now_ns: int
) -> tuple[Batch, dict[int, str]]:
    """Return what a body holds, and the reasons of what could not be read by its position.

    Raises:
        BadRequestError: it is no JSON array, and should be one.
    """
    placed: list[tuple[int, Point]] = []
    faults: dict[int, str] = {}
    for position, found in (read_json if is_json else read_commands)(body, now_ns=now_ns):
        if isinstance(found, ValueFaultError):
            faults[position] = str(found)
        else:
            point = maker.point(found)
            if point is not None:
                placed.append((position, point))
    return Batch.of_placed(placed), faults

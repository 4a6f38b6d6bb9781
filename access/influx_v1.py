"""`/write` and `/ping` for programs that know InfluxDB 1 alone.

The agent's token is the password; the user's name, `db` and `rp` may have any value. There is no
`/query`: samples are read through the portal.

Source: the HTTP API of InfluxDB 1.8.
"""

from starlette.requests import Request
from starlette.responses import Response

from access.auth import Authenticator
from access.body import read_body
from access.errors import error_response
from access.gateway import Gateway
from access.write import checked_precision, sentence_of

PRECISIONS = ("n", "ns", "u", "us", "ms", "s", "m", "h")
# Clients choose by it what they send; this is what `/write` is like.
SPOKEN_VERSION = "1.8.0"


class InfluxV1Endpoints:
    """Takes line protocol from whatever writes to an InfluxDB 1."""

    def __init__(
        self, authenticator: Authenticator, gateway: Gateway, *, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def write(self, request: Request) -> Response:
        """Store the body's lines, stamped with who sent them."""
        agent = await self._authenticator.agent_of_influx_v1(request)
        precision = checked_precision(request.query_params.get("precision", "ns"), PRECISIONS)
        body = await read_body(request, max_bytes=self._max_body_bytes)
        outcome = await self._gateway.take_lines(agent, body, precision=precision)
        if not outcome.faults:
            return Response(status_code=204)
        message = f"partial write: {sentence_of(outcome, kind='line')}"
        return error_response(
            request,
            code="invalid",
            status=400,
            message=f"{message} dropped={len(outcome.faults)}",
        )

    async def ping(self, _request: Request) -> Response:
        """Say that somebody is here."""
        headers = {"X-Influxdb-Version": SPOKEN_VERSION, "X-Influxdb-Build": "Vedette"}
        return Response(status_code=204, headers=headers)

    async def query(self, request: Request) -> Response:
        """Say where samples are read instead."""
        return error_response(
            request,
            code="not_found",
            status=404,
            message="Samples are written here and read through the portal. Switch off what makes "
            "or asks databases, such as Telegraf by skip_database_creation = true.",
        )

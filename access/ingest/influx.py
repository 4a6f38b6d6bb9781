"""The write endpoints of InfluxDB: `/api/v2/write`, and `/write` with `/ping` for version 1.

204 means that every line is durable. Many senders drop a whole body on 400, so the valid lines are
stored anyway, and the response lists the errors by line number. Points that the kind of store can't
have, such as text in VictoriaMetrics, are no errors: the header X-Vedette-Left-Out counts them.
Overload is 429 and an unavailable store 503, both with Retry-After. Each appliance has one place
for its samples: `bucket`, `org`, `db` and `rp` may have any value. Samples are read through the
portal, so `/query` is 404.

Source: the HTTP APIs of InfluxDB 2 and 1.8; Telegraf's reaction to each status.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from access.errors import BadRequestError, error_response
from access.identity.agent_registry import Agent
from access.identity.auth import Authenticator
from access.ingest.body import BYTE_ORDER_MARK, read_body, unpacked_at_once
from access.ingest.gateway import Gateway, WriteResult, parse_errors
from access.ingest.metrics import INGESTED_BYTES
from access.ingest.receiver import INFLUX, TELEGRAF, Receiver
from access.ingest.request_batcher import MAX_POST_BYTES
from access.ingest.sender_series import Sender
from core.errors import VedetteError

V2_PRECISIONS = ("ns", "us", "ms", "s")
V1_PRECISIONS = ("n", "ns", "u", "us", "ms", "s", "m", "h")
# Clients adapt to this version; `/write` behaves like it.
V1_VERSION = "1.8.0"
LEFT_OUT_HEADER = "X-Vedette-Left-Out"
# In the ASGI scope of a request whose body is being stored: its agent, and the future result.
_BEGUN = "vedette.write"
_MESSAGE_ERRORS = 5
_LISTED_ERRORS = 100


class InfluxEndpoints:
    """Ingests line protocol from agents and from any client of InfluxDB."""

    def __init__(
        self,
        authenticator: Authenticator,
        gateway: Gateway,
        receiver: Receiver,
        *,
        max_body_bytes: int,
    ) -> None:
        self._authenticator = authenticator
        self._gateway = gateway
        self._receiver = receiver
        self._max_body_bytes = max_body_bytes

    def begin_v2(self, scope: Scope, body: bytes, on_done: Callable[[bool], None]) -> bool:
        """Begin to store the body of a post to `write_v2`, if it is one of a joined batch.

        Args:
            scope: of the request.
            body: as it was sent.
            on_done: gets whether the answer is 204; if not, `write_v2` gives it.

        Returns:
            False if nothing was begun, and `write_v2` must do all.
        """
        if len(body) > min(self._max_body_bytes, MAX_POST_BYTES):
            return False
        agent = self._authenticator.agent_at_once(scope)
        precision = _precision_of(scope["query_string"])
        lines = None if agent is None else _lines_at_once(scope, body, self._max_body_bytes)
        if agent is None or lines is None or precision not in V2_PRECISIONS:
            return False
        written = self._gateway.begin_lines(agent, lines, precision=precision)
        if written is None:
            return False
        scope[_BEGUN] = agent, written
        written.add_done_callback(partial(self._on_written, on_done))
        return True

    def _on_written(
        self, on_done: Callable[[bool], None], written: "asyncio.Future[WriteResult]"
    ) -> None:
        is_stored = not written.cancelled() and written.exception() is None
        on_done(is_stored and self._gateway.counted(written.result()))

    async def write_v2(self, request: Request) -> Response:
        """Store the body's lines with the sender's identity."""
        if _BEGUN in request.scope:
            agent, written = request.scope[_BEGUN]
            result = await self._gateway.noted(agent, await written)
        else:
            sender = await self._authenticator.sender(request)
            result = await self._write(request, sender, V2_PRECISIONS)
        if result.errors:
            return error_of(request, result, kind="line")
        return Response(status_code=204, headers=left_out_header(result))

    async def write_v1(self, request: Request) -> Response:
        """Store the body's lines with the sender's identity; the password is the agent token."""
        sender = await self._authenticator.sender(request, password=True)
        result = await self._write(request, sender, V1_PRECISIONS)
        if not result.errors:
            return Response(status_code=204, headers=left_out_header(result))
        message = f"partial write: {error_message(result, kind='line')}"
        return error_response(
            request,
            code="invalid",
            status=400,
            message=f"{message} dropped={len(result.errors)}",
        )

    async def ping(self, _request: Request) -> Response:
        """Answer that the server is up."""
        headers = {"X-Influxdb-Version": V1_VERSION, "X-Influxdb-Build": "Vedette"}
        return Response(status_code=204, headers=headers)

    async def query(self, request: Request) -> Response:
        """Answer that samples can't be queried through this API."""
        return error_response(
            request,
            code="not_found",
            status=404,
            message="This address only accepts writes. Read samples through the portal, and turn "
            "off database creation in the client (Telegraf: skip_database_creation = true).",
        )

    async def _write(
        self, request: Request, sender: Sender, precisions: tuple[str, ...]
    ) -> WriteResult:
        precision = request.query_params.get("precision", "ns")
        if precision not in precisions:
            raise BadRequestError(
                f"precision {precision[:50]!r} is unknown; use one of {', '.join(precisions)}."
            )
        body = await read_body(request, max_bytes=self._max_body_bytes, tenant_id=sender.tenant_id)
        lines = body.removeprefix(BYTE_ORDER_MARK)
        if isinstance(sender, Agent):
            return await self._gateway.write_lines(sender, lines, precision=precision)
        INGESTED_BYTES.inc(len(lines))
        is_telegraf = request.headers.get("User-Agent", "").startswith("Telegraf")
        parsed = await self._gateway.parse_lines(sender.tenant_id, lines, precision=precision)
        return await self._receiver.write(
            sender,
            parsed.batch,
            errors=parse_errors(parsed),
            program=TELEGRAF if is_telegraf else INFLUX,
            precision=precision,
        )


# Clients send the same one with each request.
@lru_cache(maxsize=256)
def _precision_of(query: bytes) -> str:
    return QueryParams(query).get("precision", "ns")


def _lines_at_once(scope: Scope, body: bytes, max_bytes: int) -> bytes | None:
    """Return the decompressed body without its mark; None if `read_body` must look at it."""
    encoding = dict(reversed(scope["headers"])).get(b"content-encoding", b"")
    try:
        lines = unpacked_at_once(encoding, body, max_bytes=max_bytes)
    except VedetteError:
        return None
    return None if lines is None else lines.removeprefix(BYTE_ORDER_MARK)


def left_out_header(result: WriteResult) -> dict[str, str]:
    """Return the header with the number of points that this kind of store can't store."""
    return {LEFT_OUT_HEADER: str(result.left_out)} if result.left_out else {}


def error_of(request: Request, result: WriteResult, *, kind: str) -> Response:
    """Return 400 with the errors of a write; `kind` is what they number, such as lines."""
    errors = result.errors
    return error_response(
        request,
        code="invalid",
        status=400,
        message=error_message(result, kind=kind),
        line=errors[0].line,
        errors=[{"line": error.line, "reason": error.reason} for error in errors[:_LISTED_ERRORS]],
    )


def error_message(result: WriteResult, *, kind: str) -> str:
    """Return a message that counts the errors of a write and lists the first."""
    errors = result.errors
    listed = [f"{kind} {error.line}: {error.reason}" for error in errors[:_MESSAGE_ERRORS]]
    if len(errors) > len(listed):
        listed.append(f"and {len(errors) - len(listed)} more")
    kinds = kind if result.total == 1 else f"{kind}s"
    were = "was" if len(errors) == 1 else "were"
    return f"{len(errors)} of {result.total} {kinds} {were} not stored: {'; '.join(listed)}"

"""POST /api/v2/write: line protocol in, 204 once it is durable, as InfluxDB 2 answers.

A 400 loses data at most senders, so good lines are always kept, and the answer names the bad ones
by their number. Too much at once is 429, a store that is away 503, both with Retry-After. An
appliance has one place for its samples, so `bucket` and `org` may have any value or be absent.

Source: the write endpoint of the InfluxDB 2 API; Telegraf's reaction to each status.
"""

from functools import lru_cache

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from access.auth import Authenticator
from access.body import receive_body
from access.errors import BadRequestError, error_response
from access.faults import Fault, Outcome
from access.gateway import Gateway

PRECISIONS = ("ns", "us", "ms", "s")
_SPELT_OUT = 5
_LISTED = 100
_REMEMBERED_QUERIES = 256


class WriteEndpoint:
    """Takes line protocol from agents and whatever writes to an InfluxDB 2."""

    def __init__(
        self, authenticator: Authenticator, gateway: Gateway, *, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def write(self, scope: Scope, receive: Receive) -> Response | None:
        """Store the body's lines, stamped with who sent them; None is 204."""
        headers = dict(reversed(scope["headers"]))  # of several of one name the first counts
        agent = await self._authenticator.agent_of_headers(scope, headers)
        precision = checked_precision(_asked(scope["query_string"]), PRECISIONS)
        body = await receive_body(headers, receive, max_bytes=self._max_body_bytes)
        outcome = await self._gateway.take_lines(agent, body, precision=precision)
        return answer(Request(scope), outcome, kind="line") if outcome.faults else None


def checked_precision(precision: str, known: tuple[str, ...]) -> str:
    """Return the unit of the timestamps that a request names.

    Raises:
        BadRequestError: it is none of `known`.
    """
    if precision not in known:
        raise BadRequestError(
            f"precision {precision[:50]!r} is not known; use one of {', '.join(known)}."
        )
    return precision


def answer(request: Request, outcome: Outcome, *, kind: str) -> Response:
    """Return 400 that names what was not stored.

    Args:
        request: what is answered.
        outcome: what became of its body.
        kind: what its numbers count, such as lines.
    """
    faults = outcome.faults
    return error_response(
        request,
        code="invalid",
        status=400,
        message=sentence_of(outcome, kind=kind),
        line=faults[0].line,
        errors=[{"line": fault.line, "reason": fault.reason} for fault in faults[:_LISTED]],
    )


def sentence_of(outcome: Outcome, *, kind: str) -> str:
    """Return what was not stored, as a sentence that spells out the first faults."""
    faults = outcome.faults
    spelt_out = [_spell_out(fault, kind) for fault in faults[:_SPELT_OUT]]
    if len(faults) > len(spelt_out):
        spelt_out.append(f"and {len(faults) - len(spelt_out)} more")
    kinds = kind if outcome.total == 1 else f"{kind}s"
    were = "was" if len(faults) == 1 else "were"
    return f"{len(faults)} of {outcome.total} {kinds} {were} not stored: {'; '.join(spelt_out)}"


def _spell_out(fault: Fault, kind: str) -> str:
    return f"{kind} {fault.line}: {fault.reason}"


# A sender asks the same each time.
@lru_cache(maxsize=_REMEMBERED_QUERIES)
def _asked(query: bytes) -> str:
    return QueryParams(query).get("precision", "ns")

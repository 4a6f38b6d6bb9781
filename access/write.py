"""POST /api/v2/write: line protocol in, 204 once it is durable (InfluxDB v2 semantics).

A 400 loses data at most senders, so good lines are always kept, and the answer names the bad ones
by their number. Too much at once is 429, a store that is away 503, both with Retry-After.

Source: the write endpoint of the InfluxDB 2 API; Telegraf's reaction to each status.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from access.auth import Authenticator
from access.body import THREAD_ABOVE_BYTES, read_body
from access.errors import BadRequestError, error_response
from core.clock import NS_PER_SECOND, Clock, to_ns
from timeseries.lineprotocol import ParseResult, parse
from timeseries.lineprotocol_grammar import logical_lines
from timeseries.points import Point
from timeseries.store import Store

PRECISIONS = ("ns", "us", "ms", "s")
MAX_AHEAD = timedelta(hours=1)
_SPELT_OUT = 5
_LISTED = 100


@dataclass(frozen=True, slots=True)
class _Fault:
    """A line that was not stored, and why."""

    line: int
    reason: str


class WriteEndpoint:
    """Takes agents' samples into the store."""

    def __init__(
        self, authenticator: Authenticator, store: Store, *, clock: Clock, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._store = store
        self._clock = clock
        self._max_body_bytes = max_body_bytes

    async def write(self, request: Request) -> Response:
        """Store the body's lines, stamped with who sent them."""
        agent = await self._authenticator.agent(request)
        precision = _precision(request)
        body = await read_body(request, max_bytes=self._max_body_bytes)
        now_ns = to_ns(self._clock())
        parsed = await _parse(body, precision=precision, now_ns=now_ns)
        timely, early = _split_early(parsed.points, now_ns=now_ns, precision=precision)
        points = [parsed.points[index] for index in timely]
        refused = dict(early)
        if points:
            # Shielded: a sender that goes away must not cancel a write that is under way.
            stored = asyncio.wrap_future(self._store.submit(points, identity=agent.tags))
            refused |= {timely[r.index]: r.reason for r in await asyncio.shield(stored)}
        faults = [_Fault(error.line_number, error.reason) for error in parsed.errors]
        if refused:
            lines = _lines_of_points(body, {error.line_number for error in parsed.errors})
            faults += [_Fault(line, refused[i]) for i, line in enumerate(lines) if i in refused]
        if not faults:
            return Response(status_code=204)
        return _partly(faults, total=len(parsed.points) + len(parsed.errors))


def _precision(request: Request) -> str:
    precision = request.query_params.get("precision", "ns")
    if precision not in PRECISIONS:
        raise BadRequestError(
            f"precision {precision!r} is not known; use one of {', '.join(PRECISIONS)}."
        )
    return precision


async def _parse(body: bytes, *, precision: str, now_ns: int) -> ParseResult:
    if len(body) <= THREAD_ABOVE_BYTES:
        return parse(body, precision=precision, default_time_ns=now_ns)
    return await to_thread.run_sync(
        lambda: parse(body, precision=precision, default_time_ns=now_ns)
    )


def _split_early(
    points: Sequence[Point], *, now_ns: int, precision: str
) -> tuple[list[int], dict[int, str]]:
    """Return the indices of the points to store, and why the others lie too far ahead."""
    latest_ns = now_ns + int(MAX_AHEAD.total_seconds()) * NS_PER_SECOND
    timely, early = [], {}
    for index, point in enumerate(points):
        if point.time_ns <= latest_ns:
            timely.append(index)
        else:
            ahead = timedelta(seconds=(point.time_ns - now_ns) // NS_PER_SECOND)
            early[index] = (
                f"its time is {ahead} ahead of the portal's clock; check the sender's clock and "
                f"the precision, which was taken as {precision}"
            )
    return timely, early


def _lines_of_points(body: bytes, bad_lines: set[int]) -> Iterator[int]:
    """Yield the line number of each parsed point in turn."""
    for number, line in logical_lines(body.decode(errors="surrogateescape")):
        content = line.removesuffix("\r").strip(" ")
        if content and not content.startswith("#") and number not in bad_lines:
            yield number


def _partly(faults: Iterable[_Fault], *, total: int) -> Response:
    ordered = sorted(faults, key=lambda fault: fault.line)
    spelt_out = [f"line {fault.line}: {fault.reason}" for fault in ordered[:_SPELT_OUT]]
    if len(ordered) > len(spelt_out):
        spelt_out.append(f"and {len(ordered) - len(spelt_out)} more")
    lines = "line" if total == 1 else "lines"
    were = "was" if len(ordered) == 1 else "were"
    return error_response(
        code="invalid",
        status=400,
        message=f"{len(ordered)} of {total} {lines} {were} not stored: {'; '.join(spelt_out)}",
        line=ordered[0].line,
        errors=[{"line": fault.line, "reason": fault.reason} for fault in ordered[:_LISTED]],
    )

"""Writes of agents that a relay has received: stored as if each agent had sent its own.

Writes of an appliance are stored in their order; consecutive ones of a common form together. Those
of several appliances are stored concurrently, and batched with what agents send to this process.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from access.errors import BadRequestError, on_bug, on_vedette_error
from access.identity.agent_registry import Agent, Relay
from access.identity.auth import Authenticator
from access.ingest.body import BYTE_ORDER_MARK, too_large
from access.ingest.gateway import Gateway, LineError, WriteResult
from access.ingest.influx import V2_PRECISIONS, error_of
from access.ingest.request_batcher import join, kind_of
from core.errors import UnauthenticatedError, VedetteError
from core.turns import WRITER
from protocol.relays import RelayedOutcome, RelayedWrite

logger = logging.getLogger(__name__)

# As many small posts as fill a batch; others wait for their turn.
MAX_CONCURRENT = 640
# Above this, consecutive writes of an appliance are stored one after the other.
MAX_JOINED_BYTES = 256 * 1024
# Every answer is that of the address that agents write to.
_WRITE = Request({"type": "http", "method": "POST", "path": "/api/v2/write", "headers": []})
_STORED = RelayedOutcome(status=204)
_MAX_INT64 = 2**63 - 1
_TOO_MANY, _FAILED = 429, 500


class RelayedWriteStore:
    """Stores writes that relays send. For the tasks of one event loop."""

    def __init__(
        self, authenticator: Authenticator, gateway: Gateway, *, max_body_bytes: int
    ) -> None:
        self._authenticator = authenticator
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def store(self, relay: Relay, writes: Sequence[RelayedWrite]) -> list[RelayedOutcome]:
        """Store writes; return what each agent would have been answered, in their order."""
        of_appliance: defaultdict[str, list[int]] = defaultdict(list)
        for index, write in enumerate(writes):
            of_appliance[write.appliance_id].append(index)
        agents = await self._authenticator.agents_for(relay, of_appliance)
        outcomes = dict[int, RelayedOutcome]()

        async def store(appliance_id: str, indexes: list[int]) -> None:
            own = [writes[index] for index in indexes]
            stored = await self._of_appliance(agents.get(appliance_id), own)
            outcomes.update(zip(indexes, stored, strict=True))

        await asyncio.gather(*(store(*item) for item in of_appliance.items()))
        return [outcomes[index] for index in range(len(writes))]

    async def _of_appliance(
        self, agent: Agent | None, writes: Sequence[RelayedWrite]
    ) -> list[RelayedOutcome]:
        if agent is None:
            refusal = UnauthenticatedError(
                "This appliance is unknown, blocked, or of another tenant than the relay's."
            )
            return [await _refused(refusal)] * len(writes)
        WRITER.set(agent.tenant_id)
        outcomes: list[RelayedOutcome] = []
        for group in _groups(writes):
            last = outcomes[-1] if outcomes else _STORED
            if last.status == _TOO_MANY or last.status >= _FAILED:
                # What follows is not stored before what the relay sends again.
                outcomes += [last] * len(group)
                continue
            async with self._turns:
                outcomes += await self._of_group(agent, group)
        return outcomes

    async def _of_group(self, agent: Agent, group: list[RelayedWrite]) -> list[RelayedOutcome]:
        try:
            self._check(group[0])
            bodies = [write.body.removeprefix(BYTE_ORDER_MARK) for write in group]
            joined = join(bodies) if len(group) > 1 else None
            result = await self._gateway.write_lines(
                agent,
                bodies[0] if joined is None else joined.text,
                precision=group[0].precision,
                received_at_ns=group[0].received_at_ns,
            )
        except VedetteError as error:
            return [await _refused(error)] * len(group)
        except Exception as error:
            logger.exception("can't store a write of appliance %s", agent.appliance_id)
            return [_outcome(await on_bug(_WRITE, error))] * len(group)
        if joined is None:
            return [_answered(result)]
        results = [
            WriteResult([], body.count(b"\n") + (not body.endswith(b"\n"))) for body in bodies
        ]
        for line in result.errors:
            at = joined.post_of[line.line - 1]
            results[at].errors.append(LineError(line.line - joined.starts[at], line.reason))
        return [_answered(own) for own in results]

    def _check(self, write: RelayedWrite) -> None:
        if write.precision not in V2_PRECISIONS:
            raise BadRequestError(
                f"precision {write.precision[:50]!r} is unknown; use one of "
                f"{', '.join(V2_PRECISIONS)}."
            )
        if not 0 <= write.received_at_ns <= _MAX_INT64:
            raise BadRequestError(f"received_at_ns: {write.received_at_ns} is not a time.")
        if len(write.body) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)


def _groups(writes: Sequence[RelayedWrite]) -> Iterator[list[RelayedWrite]]:
    """Yield runs of writes that can be stored together, in order.

    These have times of their own: others get that of their arrival, which differs.
    """
    group: list[RelayedWrite] = []
    size, group_kind = 0, None
    for write in writes:
        kind = kind_of(write.body, precision=write.precision)
        kind = kind if kind is not None and kind.is_timed else None
        size += len(write.body)
        if group and (kind is None or kind != group_kind or size > MAX_JOINED_BYTES):
            yield group
            group, size = [], len(write.body)
        group.append(write)
        group_kind = kind
    if group:
        yield group


def _answered(result: WriteResult) -> RelayedOutcome:
    return _outcome(error_of(_WRITE, result, kind="line")) if result.errors else _STORED


async def _refused(error: VedetteError) -> RelayedOutcome:
    return _outcome(await on_vedette_error(_WRITE, error), error.retry_after_seconds)


def _outcome(response: Response, retry_after_seconds: float = 0.0) -> RelayedOutcome:
    return RelayedOutcome(
        status=response.status_code,
        body=bytes(response.body),
        retry_after_seconds=math.ceil(retry_after_seconds),
    )

"""`/relay/v1/*`: what relays ask and report; the bodies are in `protocol.relays`."""

import asyncio
import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from sqlalchemy import update
from starlette.requests import Request
from starlette.responses import Response

from access.agents import wait_seconds_of
from access.database import Database
from access.errors import BadRequestError
from access.identity.agent_registry import AgentRegistry, Relay
from access.identity.auth import Authenticator
from access.ingest.body import decode_struct, read_body
from access.longpoll import INTERVAL_SECONDS, ChangeWatch, disconnected
from access.relays.admission import relay_of
from access.relays.snapshots import Snapshots
from access.relays.writes import RelayedWriteStore
from core.clock import Clock, from_ns
from core.errors import InvalidInputError, OverloadedError, UnauthenticatedError
from core.rate_limits import ConcurrencyLimit
from protocol.relays import (
    MAX_SAMPLES_BYTES,
    ChangesReply,
    ChangesRequest,
    RelayedOutcomes,
    RelayedWrites,
    RelayReport,
)
from tenants.models import AccessPoint

MAX_CHANGES_BYTES = 4 * 1024 * 1024
MAX_REPORT_BYTES = 64 * 1024
MAX_WAITING_APPLIANCES = 20_000
# Of a relay: requests that wait, and those with samples, which take 32 MiB each.
MAX_CONCURRENT_WAITS = 32
MAX_CONCURRENT_SAMPLES = 4
# Of all relays.
MAX_SAMPLES_REQUESTS = 8
_ALL = "all relays"
_MAX_INT64 = 2**63 - 1
_MAX_INT32 = 2**31 - 1
_MAX_VERSION_LENGTH = 50


class RelayEndpoints:
    """The endpoints of relays. For the tasks of one event loop."""

    def __init__(
        self,
        authenticator: Authenticator,
        database: Database,
        watch: ChangeWatch,
        *,
        snapshots: Snapshots,
        store: RelayedWriteStore,
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._database = database
        self._watch = watch
        self._snapshots = snapshots
        self._store = store
        self._clock = clock
        self._waits = ConcurrencyLimit(MAX_CONCURRENT_WAITS)
        self._samples = ConcurrencyLimit(MAX_CONCURRENT_SAMPLES)
        self._all_samples = ConcurrencyLimit(MAX_SAMPLES_REQUESTS)

    async def registry(self, request: Request) -> Response:
        """Return who may authenticate, once it differs from what the relay has; else 204.

        What was blocked is news at once, new agents and certificates at the end of the wait.
        """
        relay = relay_of(request.scope)
        revision = request.query_params.get("revision", "")
        until = time.monotonic() + wait_seconds_of(request)
        gone = asyncio.ensure_future(disconnected(request))
        try:
            with _slot(self._waits, relay.relay_id):
                while True:
                    registry = await self._admitting(relay)
                    snapshot = await self._snapshots.current(relay, registry)
                    left_seconds = until - time.monotonic()
                    if snapshot.is_news(revision, is_urgent_only=left_seconds > 0):
                        return _snapshot_response(request, snapshot.body)
                    if left_seconds <= 0 or gone.done():
                        return Response(status_code=204)
                    await asyncio.wait([gone], timeout=min(left_seconds, INTERVAL_SECONDS))
        finally:
            gone.cancel()

    async def changes(self, request: Request) -> Response:
        """Return the appliances that have new orders, or that may not poll any longer."""
        relay = relay_of(request.scope)
        body = await self._body(request, relay, max_bytes=MAX_CHANGES_BYTES)
        asked = decode_struct(body, ChangesRequest)
        if len(asked.generations) > MAX_WAITING_APPLIANCES:
            problem = f"has more than {MAX_WAITING_APPLIANCES} entries"
            raise InvalidInputError(
                f"generations: {problem}. Ask for fewer appliances in each request.",
                errors={"generations": [problem]},
            )
        with _slot(self._waits, relay.relay_id):
            agents = await self._authenticator.agents_for(relay, asked.generations)
            changed = [ident for ident in asked.generations if ident not in agents]
            if not changed:
                changed = await self._watch.wait_any(
                    asked.generations,
                    timeout_seconds=asked.wait_seconds,
                    disconnected=disconnected(request),
                )
            await self._admitting(relay)
        return Response(
            msgspec.json.encode(ChangesReply(changed=changed)), media_type="application/json"
        )

    async def samples(self, request: Request) -> Response:
        """Store writes, and return the answer to each."""
        relay = relay_of(request.scope)
        with _slot(self._samples, relay.relay_id), _slot(self._all_samples, _ALL):
            body = await self._body(request, relay, max_bytes=MAX_SAMPLES_BYTES)
            try:
                writes = msgspec.msgpack.decode(body, type=RelayedWrites).writes
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BadRequestError(f"The body is not valid MessagePack: {error}.") from error
            outcomes = await self._store.store(relay, writes)
        return Response(
            msgspec.msgpack.encode(RelayedOutcomes(outcomes=outcomes)),
            media_type="application/msgpack",
        )

    async def report(self, request: Request) -> Response:
        """Store how a relay is doing."""
        relay = relay_of(request.scope)
        body = await self._body(request, relay, max_bytes=MAX_REPORT_BYTES)
        values = _values(decode_struct(body, RelayReport))
        values["seen_at"] = self._clock()
        statement = update(AccessPoint).where(AccessPoint.id == relay.relay_id).values(**values)
        await self._database.run(lambda session: session.execute(statement))
        return Response(status_code=204)

    async def _admitting(self, relay: Relay) -> AgentRegistry:
        """Return the registry, which still admits a relay that has waited."""
        registry = await self._authenticator.registry()
        if registry.relays.get(relay.key) != relay:
            raise UnauthenticatedError("The token of this relay was revoked.", code="unknown_relay")
        return registry

    async def _body(self, request: Request, relay: Relay, *, max_bytes: int) -> bytes:
        # The relays take turns with tenants where a large body is decompressed.
        return await read_body(request, max_bytes=max_bytes, tenant_id=relay.relay_id)


@contextmanager
def _slot(limit: ConcurrencyLimit, key: str) -> Iterator[None]:
    with limit.running(key) as is_admitted:
        if not is_admitted:
            raise OverloadedError(
                f"At most {limit.max_running} such requests of "
                f"{'relays' if key == _ALL else 'a relay'} are answered concurrently. Try again "
                "in a second.",
                retry_after_seconds=1,
            )
        yield


def _values(report: RelayReport) -> dict[str, object]:
    """Return the columns of a report; numbers that can't be stored are bounded."""
    oldest_ns = report.oldest_spooled_at_ns
    for name, time_ns in (
        ("started_at_ns", report.started_at_ns),
        ("oldest_spooled_at_ns", oldest_ns),
    ):
        if not 0 <= time_ns <= _MAX_INT64:
            problem = f"{time_ns} is not a time in nanoseconds"
            raise InvalidInputError(f"{name}: {problem}.", errors={name: [problem]})
    return {
        "version": report.version[:_MAX_VERSION_LENGTH],
        "started_at": from_ns(report.started_at_ns),
        "agents": min(max(report.agents, 0), _MAX_INT32),
        "oldest_spooled_at": from_ns(oldest_ns) if oldest_ns else None,
        "requests_per_second": max(report.requests_per_second, 0.0),
        "cpu_percent": max(report.cpu_percent, 0.0),
    } | {
        name: min(max(getattr(report, name), 0), _MAX_INT64)
        for name in (
            *("spool_bytes", "max_spool_bytes", "refused_writes"),
            *("undeliverable_bytes", "memory_bytes"),
        )
    }


def _snapshot_response(request: Request, packed: bytes) -> Response:
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(gzip.decompress(packed), media_type="application/json")
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(packed, media_type="application/json", headers=headers)

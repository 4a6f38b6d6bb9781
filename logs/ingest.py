"""Ingest of appliances' lines: stored in the database at once, and moved to files later.

A batch that was stored before is acknowledged and changes nothing.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.errors import OverloadedError, UnavailableError
from core.ids import new_id
from core.rate_limits import BURST_SECONDS, RateLimit
from logs.forwarding.queue import queue_lines
from logs.models import LogBatch
from protocol.lines import ApplianceLine, LineBatch

# Lines of a clock that is ahead are stored as of now: nobody would find them later.
MAX_AHEAD = timedelta(minutes=5)


class LineRates:
    """Limits how many bytes an appliance, and all appliances of a tenant, send. Thread-safe.

    Args:
        of_appliance: in bytes.
        of_tenant: the same of all appliances of a tenant together.
    """

    def __init__(self, *, of_appliance: RateLimit, of_tenant: RateLimit) -> None:
        self._of_appliance = of_appliance
        self._of_tenant = of_tenant

    @staticmethod
    def _hit(limit: RateLimit, key: str, size_bytes: int) -> float:
        # An upload that is larger than a burst would never be accepted.
        return limit.hit(key, cost=max(1, min(size_bytes, int(limit.per_second * BURST_SECONDS))))

    def check(self, tenant_id: str, appliance_id: str, size_bytes: int) -> None:
        """Count bytes of an appliance.

        Raises:
            OverloadedError: there are too many; the agent buffers its lines and tries again.
        """
        wait_seconds = self._hit(self._of_appliance, appliance_id, size_bytes)
        who = "This appliance"
        if not wait_seconds:
            wait_seconds = self._hit(self._of_tenant, tenant_id, size_bytes)
            who = "This tenant"
        if wait_seconds:
            raise OverloadedError(
                f"{who} sends more log lines than the portal accepts. They stay in the agent's "
                "buffer; select fewer units or a higher level in [logs] of agent.toml.",
                retry_after_seconds=math.ceil(wait_seconds),
            )


def store_batches(
    session: Session,
    *,
    tenant_id: str,
    appliance_id: str,
    batches: Sequence[LineBatch],
    now: datetime,
) -> int:
    """Store the batches that are new; return how many are.

    Raises:
        UnavailableError: the same batch is being stored at the moment.
    """
    keys = {batch.key: batch for batch in batches if batch.lines}
    statement = select(LogBatch.key).where(
        LogBatch.appliance_id == appliance_id, LogBatch.key.in_(keys)
    )
    stored = set(session.scalars(statement))
    latest_ns = to_ns(now + MAX_AHEAD)
    rows = [
        {
            "id": new_id(),
            "tenant_id": tenant_id,
            "appliance_id": appliance_id,
            "key": key,
            "received_at": now,
            **_content([_dated(line, latest_ns, to_ns(now)) for line in batch.lines]),
        }
        for key, batch in keys.items()
        if key not in stored
    ]
    if rows:
        try:
            session.execute(insert(LogBatch), rows)
            queue_lines(session, rows)
        except IntegrityError as error:
            raise UnavailableError(
                "These lines are being stored already. Send them again."
            ) from error
    return len(rows)


def _dated(line: ApplianceLine, latest_ns: int, now_ns: int) -> ApplianceLine:
    return line if line.at_ns <= latest_ns else msgspec.structs.replace(line, at_ns=now_ns)


def _content(lines: Sequence[ApplianceLine]) -> dict[str, object]:
    data = msgspec.json.encode(lines)
    times = [line.at_ns for line in lines]
    return {
        "first_ns": min(times),
        "last_ns": max(times),
        "line_count": len(lines),
        "size_bytes": len(data),
        "data": data.decode(),
    }

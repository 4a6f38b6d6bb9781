"""Requests to services: counted by each process that passes them on, summed up by the scheduler.

A process adds what it has counted to its row every few seconds. The scheduler remembers what it has
seen of each row, so that rows may be deleted when nobody uses them.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one
from jobqueue.models import ServiceTraffic

WINDOW_SECONDS = 60
BURST_SECONDS = 15
# A process that has not written for so long has gone, or passes nothing on.
STALE_AFTER = timedelta(minutes=10)
# Of one service at once; more are counted with the next pass.
MAX_PROCESSES = 1_000


class Count(msgspec.Struct, frozen=True):
    """Requests and the sum of their durations, within some seconds or since a process began."""

    requests: int = 0
    busy_seconds: float = 0.0


class Interval(msgspec.Struct, frozen=True):
    """What was counted in the seconds before a time."""

    at: float
    seconds: float
    count: Count


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the rows of a service, and the last minute of its requests.

    Attributes:
        at: when it was seen, in seconds since 1970; 0 for never.
        seen: by process.
        recent: oldest first.
    """

    at: float = 0.0
    seen: dict[str, Count] = {}
    recent: list[Interval] = []

    @property
    def is_used(self) -> bool:
        """Whether there were requests since the time before, or are still."""
        last = self.recent[-1].count if self.recent else Count()
        return bool(last.requests or last.busy_seconds)

    def rates(self, seconds: float) -> tuple[float, float] | None:
        """Return requests per second and concurrent requests of so many seconds, if known."""
        recent = [part for part in self.recent if part.at > self.at - seconds] or self.recent[-1:]
        duration = sum(part.seconds for part in recent)
        if not duration:
            return None
        requests = sum(part.count.requests for part in recent)
        busy_seconds = sum(part.count.busy_seconds for part in recent)
        return requests / duration, busy_seconds / duration


def advance(traffic: Traffic, rows: Mapping[str, Count], *, at: float) -> Traffic:
    """Return the traffic after another look at the rows."""
    seconds = at - traffic.at
    recent = [part for part in traffic.recent if part.at > at - WINDOW_SECONDS]
    if traffic.at and seconds > 0:
        new = [_since(traffic.seen.get(process, Count()), row) for process, row in rows.items()]
        requests = sum(count.requests for count in new)
        busy_seconds = sum(count.busy_seconds for count in new)
        recent.append(Interval(at, seconds, Count(requests, busy_seconds)))
    return Traffic(at=at, seen=dict(rows), recent=recent)


def _since(before: Count, row: Count) -> Count:
    if row.requests < before.requests or row.busy_seconds < before.busy_seconds:
        return row  # another row of the process: the one before was deleted
    return Count(row.requests - before.requests, row.busy_seconds - before.busy_seconds)


def read_traffic(session: Session, service_id: str) -> dict[str, Count]:
    """Return the rows of a service, by process."""
    statement = select(ServiceTraffic).where(ServiceTraffic.service_id == service_id)
    newest = statement.order_by(ServiceTraffic.updated_at.desc()).limit(MAX_PROCESSES)
    return {
        row.process_id: Count(row.requests, row.busy_seconds)
        for row in session.scalars(newest.execution_options(populate_existing=True))
    }


def add_traffic(
    session: Session,
    process_id: str,
    counts: Iterable[tuple[str, str, Count]],
    *,
    now: datetime,
) -> None:
    """Add what a process has counted, given as service, tenant and count."""
    for service_id, tenant_id, count in counts:
        statement = update(ServiceTraffic).where(
            ServiceTraffic.service_id == service_id, ServiceTraffic.process_id == process_id
        )
        values = {
            ServiceTraffic.requests: ServiceTraffic.requests + count.requests,
            ServiceTraffic.busy_seconds: ServiceTraffic.busy_seconds + count.busy_seconds,
            ServiceTraffic.updated_at: now,
        }
        if changed_one(session, statement.values(values), synchronize_session=False):
            continue
        row = ServiceTraffic(
            service_id=service_id,
            process_id=process_id,
            tenant_id=tenant_id,
            requests=count.requests,
            busy_seconds=count.busy_seconds,
            updated_at=now,
        )
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            continue  # the service was deleted


def sweep_traffic(session: Session, *, now: datetime) -> None:
    """Delete the rows of processes that pass nothing on."""
    session.execute(delete(ServiceTraffic).where(ServiceTraffic.updated_at < now - STALE_AFTER))

"""How many series each tenant has, as the servers that take samples count them.

Each server limits what it takes by its own count, so the largest is what a quota is compared with.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from tenants.models import SeriesCount, Tenant

# As long as a series is active after its last sample.
COUNT_HOLDS = timedelta(hours=1)


def note_series(session: Session, server: str, counts: Mapping[str, int], *, now: datetime) -> None:
    """Keep what a server counts, in place of what it counted before.

    Args:
        session: the database session.
        server: which one, by a name of its own.
        counts: the active series of each tenant that has any.
        now: the present instant.
    """
    here = SeriesCount.server == server
    known = set(session.scalars(select(SeriesCount.tenant_id).where(here)))
    gone = known - counts.keys()
    if gone:
        session.execute(
            delete(SeriesCount).where(here, SeriesCount.tenant_id.in_(gone)),
            execution_options={"synchronize_session": False},
        )
    rows = {
        tenant_id: {
            "tenant_id": tenant_id, "server": server, "series": count, "counted_at": now,
        }
        for tenant_id, count in counts.items()
    }  # fmt: skip
    changed = [row for tenant_id, row in rows.items() if tenant_id in known]
    if changed:
        session.execute(update(SeriesCount), changed)
    # A tenant may be removed while its series are still counted.
    new = set(session.scalars(select(Tenant.id).where(Tenant.id.in_(rows.keys() - known))))
    if new:
        session.execute(insert(SeriesCount), [rows[tenant_id] for tenant_id in sorted(new)])


def series_counts(
    session: Session, tenant_ids: Collection[str] | None = None, *, now: datetime
) -> dict[str, int]:
    """Return the active series of each tenant that has any; `tenant_ids` narrows."""
    statement = (
        select(SeriesCount.tenant_id, func.max(SeriesCount.series))
        .where(SeriesCount.counted_at > now - COUNT_HOLDS)
        .group_by(SeriesCount.tenant_id)
    )
    if tenant_ids is not None:
        statement = statement.where(SeriesCount.tenant_id.in_(tenant_ids))
    return {row[0]: row[1] for row in session.execute(statement)}

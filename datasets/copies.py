"""Copies of versions in the caches of appliances, as their agents report them.

A report names everything that a cache has, so what it doesn't name is gone. Only rows that differ
are written: an idle appliance writes one row every few minutes.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.clock import from_ns
from core.db import chunked
from datasets.indexing import record_indexing
from datasets.models import ApplianceCache, DatasetCopyRecord, DatasetVersion
from datasets.peers import neighbors, offers_peers
from protocol.datasets import CopyState, DatasetCopy, DatasetReport
from tenants.fleet.appliances import bump_generation, bump_generations
from tenants.models import Appliance, Grant

# A cache that reports nothing new is written this often.
SEEN_EVERY = timedelta(minutes=5)
# Appliances that learn at once that another one has what they fetch.
MAX_TOLD = 100
_MAX_BYTES = 2**62
# A rate that has changed by less is not written.
_RATE_STEP = 0.2


class _Stored(NamedTuple):
    """The columns of a copy that a report may change."""

    state: CopyState
    cached_bytes: int
    fetched_bytes: int
    peer_bytes: int
    message: str
    last_used_at: datetime | None


class _Owner(NamedTuple):
    """The appliance that reports."""

    id: str
    tenant_id: str
    site: str


def read_copies(
    session: Session,
    tenant_id: str,
    version_ids: Collection[str],
    *,
    appliance_id: str | None = None,
) -> dict[str, dict[str, int]]:
    """Return the cached bytes of a tenant's versions by version and appliance, or on one alone."""
    on_it = [] if appliance_id is None else [DatasetCopyRecord.appliance_id == appliance_id]
    copies: dict[str, dict[str, int]] = {version_id: {} for version_id in version_ids}
    for chunk in chunked(sorted(version_ids)):
        statement = select(
            DatasetCopyRecord.version_id,
            DatasetCopyRecord.appliance_id,
            DatasetCopyRecord.cached_bytes,
        ).where(
            DatasetCopyRecord.tenant_id == tenant_id,
            DatasetCopyRecord.version_id.in_(chunk),
            *on_it,
        )
        for version_id, owner_id, cached_bytes in session.execute(statement):
            copies[version_id][owner_id] = cached_bytes
    return copies


class FetchingCache(NamedTuple):
    """A cache that fetches datasets ahead of jobs, and the versions that it failed to fetch."""

    appliance_id: str
    bytes_per_second: int | None
    failed: frozenset[str]


def fetching_caches(session: Session, tenant_id: str) -> list[FetchingCache]:
    """Return the caches of a tenant's own appliances."""
    failures = select(DatasetCopyRecord.appliance_id, DatasetCopyRecord.version_id).where(
        DatasetCopyRecord.tenant_id == tenant_id, DatasetCopyRecord.state == CopyState.FAILED
    )
    failed: dict[str, set[str]] = defaultdict(set)
    for appliance_id, version_id in session.execute(failures):
        failed[appliance_id].add(version_id)
    caches = select(ApplianceCache.appliance_id, ApplianceCache.bytes_per_second).where(
        ApplianceCache.tenant_id == tenant_id
    )
    return [
        FetchingCache(appliance_id, rate, frozenset(failed[appliance_id]))
        for appliance_id, rate in session.execute(caches)
    ]


def record_report(
    session: Session, appliance_id: str, report: DatasetReport, *, now: datetime
) -> None:
    """Store what the cache of an appliance has, and how far the index of new versions is.

    Its neighbors fetch new orders when they can get from it what they are fetching.
    """
    row = session.execute(
        select(Appliance.id, Appliance.tenant_id, Appliance.site).where(
            Appliance.id == appliance_id
        )
    ).one_or_none()
    if row is None:
        return  # deleted a moment ago
    owner = _Owner(*row)
    is_new, has_moved = _record_cache(session, owner, report, now=now)
    offered = _record_copies(session, owner, report.copies, now=now)
    record_indexing(session, owner.id, report.indexing, now)
    if is_new:
        bump_generation(session, owner.id)  # from now on it gets orders
    if (has_moved or offered) and offers_peers(session, owner.tenant_id, owner.site):
        told = _fetching(session, owner, offered) if offered else []
        everybody = neighbors(session, owner.tenant_id, owner.site) if has_moved else []
        bump_generations(session, {*told, *everybody[:MAX_TOLD]} - {owner.id})


def _record_cache(
    session: Session, owner: _Owner, report: DatasetReport, *, now: datetime
) -> tuple[bool, bool]:
    """Store the cache; return whether it is the first report, and whether peers find it anew."""
    locked = select(ApplianceCache).where(ApplianceCache.appliance_id == owner.id).with_for_update()
    cache = session.scalar(locked)
    is_new = cache is None
    if cache is None:
        cache = ApplianceCache(appliance_id=owner.id, tenant_id=owner.tenant_id, reported_at=now)
        try:
            with session.begin_nested():
                session.add(cache)
        except IntegrityError:  # the same report came twice at once
            cache = session.scalars(locked).one()
            is_new = False
    values: dict[str, Any] = {
        "tenant_id": owner.tenant_id,
        "cache_bytes": min(report.cache_bytes, _MAX_BYTES),
        "cache_limit_bytes": min(report.cache_limit_bytes, _MAX_BYTES),
        "peer_url": report.peer_url,
    }
    if rate := report.bytes_per_second:
        stored = cache.bytes_per_second or 0
        if abs(rate - stored) > _RATE_STEP * stored:
            values["bytes_per_second"] = min(rate, _MAX_BYTES)
    has_moved = (cache.peer_url or "") != report.peer_url
    has_changed = any(getattr(cache, name) != value for name, value in values.items())
    if is_new or has_changed or now - cache.reported_at >= SEEN_EVERY:
        for name, value in values.items():
            setattr(cache, name, value)
        cache.reported_at = now
        session.flush()
    return is_new, has_moved


def _record_copies(
    session: Session, owner: _Owner, copies: Iterable[DatasetCopy], *, now: datetime
) -> set[str]:
    """Store the copies; return the versions that this appliance has begun or ended to fetch."""
    columns = (getattr(DatasetCopyRecord, name) for name in ("version_id", *_Stored._fields))
    own = DatasetCopyRecord.appliance_id == owner.id
    rows = session.execute(select(*columns).where(own))
    stored = {version_id: _Stored(*values) for version_id, *values in rows}
    reported = {copy.version_id: _values(copy, now=now) for copy in copies}
    tenants = _tenants_of(session, owner, reported.keys() - stored.keys())
    added = [ident for ident in tenants if tenants[ident] == owner.tenant_id]
    gone = stored.keys() - reported.keys()
    for chunk in chunked(sorted(gone)):
        deleted = delete(DatasetCopyRecord).where(own, DatasetCopyRecord.version_id.in_(chunk))
        session.execute(deleted, execution_options={"synchronize_session": False})
    owned = {"appliance_id": owner.id, "reported_at": now}
    made = [
        {"version_id": ident, "tenant_id": tenants[ident], **reported[ident]._asdict(), **owned}
        for ident in sorted(tenants)
    ]
    if made:
        session.execute(insert(DatasetCopyRecord), made)
    changed = [
        ident
        for ident in sorted(stored.keys() & reported.keys())
        if stored[ident] != reported[ident]
    ]
    for ident in changed:
        written = update(DatasetCopyRecord).where(own, DatasetCopyRecord.version_id == ident)
        session.execute(
            written.values(**reported[ident]._asdict(), reported_at=now),
            execution_options={"synchronize_session": False},
        )
    return {
        *(ident for ident in added if reported[ident].state is not CopyState.FAILED),
        *(
            ident
            for ident in changed
            if reported[ident].state is CopyState.COMPLETE
            and stored[ident].state is not CopyState.COMPLETE
        ),
    }


def _values(copy: DatasetCopy, *, now: datetime) -> _Stored:
    used_at = None
    if copy.last_used_at_ns is not None:
        # A clock that is ahead must not keep a copy, nor exceed what databases store.
        used_at = min(from_ns(min(max(copy.last_used_at_ns, 0), 2**62)), now)
        used_at = used_at.replace(microsecond=0)
    return _Stored(
        copy.state,
        min(copy.cached_bytes, _MAX_BYTES),
        min(copy.fetched_bytes, _MAX_BYTES),
        min(copy.peer_bytes, _MAX_BYTES),
        copy.message,
        used_at,
    )


def _tenants_of(session: Session, owner: _Owner, idents: Collection[str]) -> dict[str, str]:
    """Return the tenants of the versions among some ids; these stay until the transaction ends.

    They are of the appliance's own tenant, or of one that may rent from it.
    """
    customers = select(Grant.tenant_id).where(Grant.provider_id == owner.tenant_id)
    tenants: dict[str, str] = {}
    for chunk in chunked(sorted(idents)):
        statement = select(DatasetVersion.id, DatasetVersion.tenant_id).where(
            DatasetVersion.id.in_(chunk),
            or_(
                DatasetVersion.tenant_id == owner.tenant_id,
                DatasetVersion.tenant_id.in_(customers),
            ),
        )
        rows = session.execute(statement.with_for_update(read=True))
        tenants.update({row[0]: row[1] for row in rows})
    return tenants


def _fetching(session: Session, owner: _Owner, version_ids: Collection[str]) -> list[str]:
    """Return the neighbors that fetch some versions now."""
    statement = (
        select(DatasetCopyRecord.appliance_id)
        .join(Appliance, Appliance.id == DatasetCopyRecord.appliance_id)
        .where(
            DatasetCopyRecord.tenant_id == owner.tenant_id,
            DatasetCopyRecord.version_id.in_(sorted(version_ids)[:MAX_TOLD]),
            DatasetCopyRecord.state == CopyState.FETCHING,
            Appliance.site == owner.site,
            Appliance.id != owner.id,
        )
        .distinct()
        .limit(MAX_TOLD)
    )
    return list(session.scalars(statement))


def cached_on(session: Session, version_ids: Collection[str]) -> Mapping[str, int]:
    """Return on how many appliances of its tenant each of some versions is complete."""
    statement = (
        select(DatasetCopyRecord.version_id, func.count())
        .join(Appliance, Appliance.id == DatasetCopyRecord.appliance_id)
        .where(
            Appliance.tenant_id == DatasetCopyRecord.tenant_id,
            DatasetCopyRecord.version_id.in_(version_ids),
            DatasetCopyRecord.state == CopyState.COMPLETE,
        )
        .group_by(DatasetCopyRecord.version_id)
    )
    counts = dict.fromkeys(version_ids, 0)
    if version_ids:
        counts.update({row[0]: row[1] for row in session.execute(statement)})
    return counts

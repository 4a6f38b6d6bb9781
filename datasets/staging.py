"""What appliances should have of datasets: for their attempts, ahead of jobs, and to index.

An agent gets new orders when the generation of its appliance's desired state is raised.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session, lazyload

from core.db import chunked
from core.secretbox import SecretBox
from datasets.models import ApplianceCache, Dataset, DatasetPrefetch, DatasetVersion, VersionState
from datasets.peers import neighbors, offers_peers, peers_of
from datasets.sources import ON_AN_APPLIANCE, source_of
from datasets.targets import is_for
from protocol.datasets import (
    SHA256_LENGTH,
    DatasetOrders,
    DatasetSource,
    IndexOrder,
    PeerAddress,
    SourceKind,
    StagedDataset,
)
from tenants.models import Appliance

# Of a version that was deleted: the agent asks for it, and reports that it is gone.
NO_DIGEST = "0" * SHA256_LENGTH


class _Place(NamedTuple):
    """An appliance; `tenant_id` is whose datasets it gets."""

    id: str
    tenant_id: str
    site: str
    labels: dict[str, str]
    is_rented: bool = False


def staged_datasets(
    session: Session,
    appliance_id: str,
    mounts: Mapping[str, Sequence[Mapping[str, Any]]],
    box: SecretBox,
    *,
    customer_id: str | None = None,
) -> dict[str, list[StagedDataset]]:
    """Return what is staged for attempts of an appliance, by the attempt's id.

    A version that was deleted is there with `NO_DIGEST`, so that no attempt starts without it.

    Args:
        session: the session.
        appliance_id: the appliance.
        mounts: what each attempt's job reads, as it stores it.
        box: decrypts the credentials of sources.
        customer_id: the tenant of the attempts that rent the appliance: no other appliance passes
            its data on, and it does not read from the appliance's own disks.

    Raises:
        UnavailableError: the key of a source's credentials is missing.
    """
    idents = {mount["version_id"] for of_attempt in mounts.values() for mount in of_attempt}
    place = _place(session, appliance_id) if idents else None
    if place is None:
        return {}
    if customer_id is not None:
        place = place._replace(tenant_id=customer_id, is_rented=True)
    staged = {
        version.version_id: version
        for chunk in chunked(sorted(idents))
        for version in _ready(session, place, DatasetVersion.id.in_(chunk), box)
    }
    return {
        attempt_id: [
            msgspec.structs.replace(
                staged.get(mount["version_id"]) or _missing(mount), target=mount["target"]
            )
            for mount in of_attempt
        ]
        for attempt_id, of_attempt in mounts.items()
    }


def dataset_orders(
    session: Session,
    appliance_id: str,
    box: SecretBox,
    *,
    awaited: Sequence[str] = (),
) -> DatasetOrders:
    """Return what an appliance should fetch, keep and index, apart from its attempts.

    An agent that has reported no cache only reads sources.

    Args:
        session: the session.
        appliance_id: the appliance.
        box: decrypts the credentials of sources.
        awaited: the versions of its tenant that jobs wait for there, the first of the queue first;
            as many are fetched as the cache holds.

    Raises:
        UnavailableError: the key of a source's credentials is missing.
    """
    cache = session.get(ApplianceCache, appliance_id)
    place = _place(session, appliance_id) if cache is not None else None
    if place is None or cache is None:
        return DatasetOrders(index=index_orders(session, appliance_id, box))
    pinned, fetched = _wanted(session, place)
    wanted = pinned | fetched | set(awaited)
    versions = [
        version
        for chunk in chunked(sorted(wanted))
        for version in _ready(session, place, DatasetVersion.id.in_(chunk), box)
    ]
    has_peers = offers_peers(session, place.tenant_id, place.site)
    others = neighbors(session, place.tenant_id, place.site) if has_peers else []
    of_jobs = _that_fit(awaited, versions, cache.cache_limit_bytes)
    first = {version.version_id for version in of_jobs}
    later = fetched - first
    return DatasetOrders(
        prefetch=[*of_jobs, *(version for version in versions if version.version_id in later)],
        awaited=len(of_jobs),
        pinned=[version for version in versions if version.version_id in pinned],
        index=index_orders(session, appliance_id, box),
        peers=[ident for ident in others if ident != place.id],
    )


def index_orders(session: Session, appliance_id: str, box: SecretBox) -> list[IndexOrder]:
    """Return the sources that an appliance should read."""
    versions = session.scalars(
        select(DatasetVersion)
        .where(
            DatasetVersion.indexing_appliance_id == appliance_id,
            DatasetVersion.state == VersionState.INDEXING,
        )
        .order_by(DatasetVersion.created_at, DatasetVersion.id)
    )
    return [
        IndexOrder(
            version_id=version.id,
            name=version.dataset.name,
            number=version.number,
            source=source_of(version.dataset, box),
        )
        for version in versions
    ]


def _that_fit(
    awaited: Sequence[str], versions: Sequence[StagedDataset], limit_bytes: int
) -> list[StagedDataset]:
    """Return the versions that jobs wait for, in their order, as far as the cache holds them.

    The first is always there: if it is too large, the agent says so.
    """
    by_id = {version.version_id: version for version in versions}
    ordered = [by_id[ident] for ident in dict.fromkeys(awaited) if ident in by_id]
    sums = accumulate(version.total_bytes for version in ordered)
    return [
        version
        for number, (version, size) in enumerate(zip(ordered, sums, strict=True))
        if size <= limit_bytes or number == 0
    ]


def _place(session: Session, appliance_id: str) -> _Place | None:
    columns = (Appliance.id, Appliance.tenant_id, Appliance.site, Appliance.labels)
    row = session.execute(select(*columns).where(Appliance.id == appliance_id)).one_or_none()
    return None if row is None else _Place(*row)


def _ready(
    session: Session, place: _Place, condition: ColumnElement[bool], box: SecretBox
) -> list[StagedDataset]:
    """Return the ready versions of an appliance's tenant that meet a condition, with peers."""
    columns = ("id", "number", "digest", "file_count", "total_bytes")
    statement = (
        select(*(getattr(DatasetVersion, name) for name in columns), Dataset)
        .join(Dataset, Dataset.id == DatasetVersion.dataset_id)
        .where(
            DatasetVersion.tenant_id == place.tenant_id,
            DatasetVersion.state == VersionState.READY,
            condition,
        )
        .options(lazyload(Dataset.versions), lazyload(Dataset.user))
    )
    rows: Sequence[Any] = session.execute(statement).all()
    peers: Mapping[str, Sequence[PeerAddress]] = {}
    if place.is_rented:
        rows = [row for row in rows if row.Dataset.kind not in ON_AN_APPLIANCE]
    elif rows and offers_peers(session, place.tenant_id, place.site):
        idents = [row.id for row in rows]
        peers = peers_of(session, place.tenant_id, place.site, but=place.id, version_ids=idents)
    return [
        StagedDataset(
            version_id=row.id,
            # Agents name it in their logs, which are the provider's.
            name=row.id[:8] if place.is_rented else row.Dataset.name,
            number=row.number,
            digest=row.digest or NO_DIGEST,
            file_count=row.file_count,
            total_bytes=row.total_bytes,
            source=source_of(row.Dataset, box),
            peers=list(peers.get(row.id, ())),
        )
        for row in rows
    ]


def _missing(mount: Mapping[str, Any]) -> StagedDataset:
    return StagedDataset(
        version_id=mount["version_id"],
        name=mount["dataset"],
        number=mount["version"],
        digest=NO_DIGEST,
        file_count=0,
        total_bytes=mount["total_bytes"],
        source=DatasetSource(kind=SourceKind.UPLOAD),
    )


def _wanted(session: Session, place: _Place) -> tuple[set[str], set[str]]:
    """Return the versions that an appliance should keep, and those that it should fetch."""
    statement = select(DatasetPrefetch).where(DatasetPrefetch.tenant_id == place.tenant_id)
    rows = session.scalars(statement.options(lazyload(DatasetPrefetch.appliance)))
    own = [row for row in rows if is_for(row, place.id, place.labels)]
    newest = newest_versions(session, {row.dataset_id for row in own if row.version_id is None})
    pinned, fetched = set[str](), set[str]()
    for row in own:
        version_id = row.version_id or newest.get(row.dataset_id)
        if version_id is not None:
            (pinned if row.is_pinned else fetched).add(version_id)
    return pinned, fetched - pinned


def newest_versions(session: Session, dataset_ids: Collection[str]) -> dict[str, str]:
    """Return the newest ready version of each of some datasets that has one."""
    newest: dict[str, str] = {}
    for chunk in chunked(sorted(dataset_ids)):
        number = (
            select(DatasetVersion.dataset_id, func.max(DatasetVersion.number).label("number"))
            .where(DatasetVersion.dataset_id.in_(chunk), DatasetVersion.state == VersionState.READY)
            .group_by(DatasetVersion.dataset_id)
            .subquery()
        )
        statement = select(DatasetVersion.dataset_id, DatasetVersion.id).join(
            number,
            and_(
                DatasetVersion.dataset_id == number.c.dataset_id,
                DatasetVersion.number == number.c.number,
            ),
        )
        newest.update({row[0]: row[1] for row in session.execute(statement)})
    return newest

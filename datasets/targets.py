"""The appliances that an order for a dataset is for."""

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from datasets.models import ApplianceCache, DatasetPrefetch, DatasetVersion, VersionState
from tenants.fleet.appliances import bump_generations
from tenants.fleet.states import in_service
from tenants.models import Appliance


def is_for(prefetch: DatasetPrefetch, appliance_id: str, labels: Mapping[str, str]) -> bool:
    """Return whether an order is for an appliance."""
    if prefetch.appliance_id is not None:
        return prefetch.appliance_id == appliance_id
    return prefetch.labels.items() <= labels.items()


def targets_of(session: Session, prefetch: DatasetPrefetch) -> list[str]:
    """Return the appliances with a cache that an order is for."""
    rows = session.execute(
        select(Appliance.id, Appliance.labels)
        .join(ApplianceCache, ApplianceCache.appliance_id == Appliance.id)
        .where(Appliance.tenant_id == prefetch.tenant_id, in_service())
        .order_by(Appliance.id)
    )
    return [ident for ident, labels in rows if is_for(prefetch, ident, labels)]


def notify_caches(session: Session, tenant_id: str) -> None:
    """Let all appliances of a tenant that fetch or read datasets fetch their orders anew."""
    cached = select(ApplianceCache.appliance_id).where(ApplianceCache.tenant_id == tenant_id)
    reading = select(DatasetVersion.indexing_appliance_id).where(
        DatasetVersion.tenant_id == tenant_id, DatasetVersion.state == VersionState.INDEXING
    )
    idents = {*session.scalars(cached), *session.scalars(reading)}
    bump_generations(session, {ident for ident in idents if ident is not None})


def notify_targets(session: Session, dataset_id: str) -> None:
    """Let appliances fetch their orders for a dataset anew: one of its versions is ready."""
    rows = session.scalars(select(DatasetPrefetch).where(DatasetPrefetch.dataset_id == dataset_id))
    bump_generations(
        session, {ident for prefetch in rows.all() for ident in targets_of(session, prefetch)}
    )

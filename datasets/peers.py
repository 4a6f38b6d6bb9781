"""Peers: appliances of one site that fetch datasets from each other, if their tenant allows it."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from datasets.models import ApplianceCache, DatasetCopyRecord
from datasets.settings import settings_of
from protocol.datasets import CopyState, PeerAddress
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import Appliance, ApplianceState

# Peers of one version that an agent is told of, and appliances that it answers.
MAX_PEERS = 20
MAX_NEIGHBORS = 1000


def offers_peers(session: Session, tenant_id: str, site: str) -> bool:
    """Return whether the appliances of a site serve each other; without a name, none is a site."""
    return bool(site) and settings_of(session, tenant_id).allows_peers


def neighbors(session: Session, tenant_id: str, site: str) -> list[str]:
    """Return the appliances with a cache in service at a site of a tenant."""
    statement = (
        select(Appliance.id)
        .join(ApplianceCache, ApplianceCache.appliance_id == Appliance.id)
        .where(*_at_site(tenant_id, site))
        .order_by(Appliance.id)
        .limit(MAX_NEIGHBORS)
    )
    return list(session.scalars(statement))


def peers_of(
    session: Session, tenant_id: str, site: str, *, but: str, version_ids: Collection[str]
) -> dict[str, list[PeerAddress]]:
    """Return who at a site has some versions, or is fetching them, the one with the most first.

    Args:
        session: the session.
        tenant_id: whose appliances they are.
        site: where they are.
        but: the appliance that asks.
        version_ids: the versions.
    """
    if not version_ids:
        return {}
    statement = (
        select(DatasetCopyRecord.version_id, ApplianceCache.appliance_id, ApplianceCache.peer_url)
        .join(ApplianceCache, ApplianceCache.appliance_id == DatasetCopyRecord.appliance_id)
        .join(Appliance, Appliance.id == ApplianceCache.appliance_id)
        .where(
            *_at_site(tenant_id, site),
            Appliance.state == ApplianceState.ONLINE,
            Appliance.id != but,
            ApplianceCache.peer_url != "",
            DatasetCopyRecord.version_id.in_(version_ids),
            DatasetCopyRecord.state != CopyState.FAILED,
        )
        .order_by(DatasetCopyRecord.cached_bytes.desc(), Appliance.id)
    )
    peers: dict[str, list[PeerAddress]] = {}
    for version_id, appliance_id, url in session.execute(statement):
        of_version = peers.setdefault(version_id, [])
        if len(of_version) < MAX_PEERS:
            of_version.append(PeerAddress(appliance_id=appliance_id, url=url))
    return peers


def _at_site(tenant_id: str, site: str) -> tuple[ColumnElement[bool], ...]:
    return (
        Appliance.tenant_id == tenant_id,
        Appliance.site == site,
        Appliance.fenced_at.is_(None),
        in_service(),
        has_no_connector(),
    )

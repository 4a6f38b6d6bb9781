"""Reading a source for a new version: which appliance does it, its progress, its result.

`datasets.staging` tells the appliance.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from datasets.models import Dataset, DatasetVersion, VersionState
from datasets.sources import ON_AN_APPLIANCE
from protocol.datasets import CopyState, DatasetCopy
from tenants.fleet.appliances import bump_generations, read_inventory, with_report
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import Appliance, ApplianceState

NO_APPLIANCE = (
    "Waits for an appliance that is online and can fetch datasets. Enroll one, or update its agent."
)
_SUITABLE = (
    Appliance.state == ApplianceState.ONLINE,
    Appliance.fenced_at.is_(None),
    in_service(),
    has_no_connector(),
)
_BATCH = 500


def can_index(appliance: Appliance) -> str | None:
    """Return why an appliance can't read sources; None if it can."""
    if appliance.retired_at or appliance.revoked_at or appliance.fenced_at:
        return "it is not in service."
    if appliance.state is not ApplianceState.ONLINE:
        return f"it is {appliance.state.value}. Choose one that is online."
    if not _can_stage(appliance):
        return "its agent can't fetch datasets. Update it, and see docs/datasets.md."
    return None


def able_appliances(session: Session, tenant_id: str) -> list[Appliance]:
    """Return the appliances of a tenant that can read sources now, by name."""
    appliances = session.scalars(
        select(Appliance)
        .where(Appliance.tenant_id == tenant_id, *_SUITABLE)
        .options(*with_report())
        .order_by(Appliance.name)
    )
    return [appliance for appliance in appliances if _can_stage(appliance)]


def choose_appliance(session: Session, version: DatasetVersion) -> Appliance | None:
    """Return the appliance that should read a version's source: the one that reads the fewest."""
    if version.requested_appliance_id is not None:
        requested = session.get(Appliance, version.requested_appliance_id)
        return requested if requested is not None and can_index(requested) is None else None
    if version.dataset.kind in ON_AN_APPLIANCE:
        return None
    able = able_appliances(session, version.tenant_id)
    reading = session.scalars(
        select(DatasetVersion.indexing_appliance_id).where(
            DatasetVersion.tenant_id == version.tenant_id,
            DatasetVersion.state == VersionState.INDEXING,
        )
    ).all()
    return min(able, key=lambda row: (reading.count(row.id), row.name), default=None)


def set_appliance(session: Session, version: DatasetVersion, appliance: Appliance | None) -> None:
    """Let an appliance read a version's source from its beginning, or nobody for now."""
    before = version.indexing_appliance_id
    version.indexing_appliance = appliance
    version.indexed_bytes = 0
    version.message = "" if appliance else _waiting_for(session, version)
    session.flush()
    bump_generations(session, {ident for ident in (before, version.indexing_appliance_id) if ident})


def record_indexing(
    session: Session, appliance_id: str, reports: Sequence[DatasetCopy], now: datetime
) -> None:
    """Store how far an appliance is with the sources that it reads, and what keeps it from them.

    Reports on versions that it should not read, as after another appliance took over, are ignored.
    """
    for report in reports:
        values: dict[str, object] = {
            "indexed_bytes": report.cached_bytes,
            "active_at": now,
            "message": report.message,
        }
        if report.state is CopyState.FAILED:
            values |= {"state": VersionState.FAILED, "message": report.message or "It failed."}
        reported = update(DatasetVersion).where(
            DatasetVersion.id == report.version_id,
            DatasetVersion.indexing_appliance_id == appliance_id,
            DatasetVersion.state == VersionState.INDEXING,
        )
        if changed_one(session, reported.values(values)) and "state" in values:
            bump_generations(session, {appliance_id})


def reassign(session: Session) -> int:
    """Give versions whose appliance is away to another one; return how many have a new one."""
    statement = (
        select(DatasetVersion)
        .outerjoin(Appliance, Appliance.id == DatasetVersion.indexing_appliance_id)
        .join(Dataset, Dataset.id == DatasetVersion.dataset_id)
        .where(
            DatasetVersion.state == VersionState.INDEXING,
            or_(
                DatasetVersion.indexing_appliance_id.is_(None),
                Appliance.state.in_((ApplianceState.UNREACHABLE, ApplianceState.LOST)),
                Appliance.fenced_at.is_not(None),
                Appliance.retired_at.is_not(None),
                Appliance.revoked_at.is_not(None),
            ),
        )
        .limit(_BATCH)
    )
    count = 0
    for version in session.scalars(statement).unique().all():
        appliance = choose_appliance(session, version)
        is_same = version.indexing_appliance_id == (appliance.id if appliance else None)
        if not is_same:
            set_appliance(session, version, appliance)
            count += appliance is not None
        elif (text := _waiting_for(session, version)) != version.message:
            version.message = text
    return count


def _waiting_for(session: Session, version: DatasetVersion) -> str:
    if version.requested_appliance_id is None:
        if version.dataset.kind in ON_AN_APPLIANCE:
            return "The appliance that should read it is gone. Cancel this version."
        return NO_APPLIANCE
    appliance = session.get(Appliance, version.requested_appliance_id)
    name = appliance.name if appliance else "its appliance"
    return f"Waits for {name}, which does not answer or can't fetch datasets."


def _can_stage(appliance: Appliance) -> bool:
    return read_inventory(appliance).can_stage

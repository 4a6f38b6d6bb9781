"""Builders for tests of datasets: with versions, copies in caches, and appliances of a site."""

# ruff: noqa: ANN401 - builders pass any field on

from typing import Any

from sqlalchemy.orm import Session

from datasets.copies import record_report
from datasets.models import (
    Dataset,
    DatasetCopyRecord,
    DatasetVersion,
    TenantDataSettings,
    VersionState,
)
from protocol.datasets import CopyState, DatasetCopy, DatasetReport, SourceKind
from tenants.models import Appliance, Tenant
from tests.cast import NOON
from tests.unit.jobqueue.builders import add_appliance

TIB = 1024**4
DIGEST = "d" * 64


def add_dataset(
    session: Session, tenant: Tenant, name: str = "imagenet", *, versions: int = 1, **changes: Any
) -> Dataset:
    """Add a dataset from a bucket with ready versions of 2 TiB."""
    fields = {"kind": SourceKind.S3, "source_url": f"s3://data/{name}"} | changes
    dataset = Dataset(tenant_id=tenant.id, name=name, created_at=NOON, **fields)
    session.add(dataset)
    session.flush()
    for number in range(1, versions + 1):
        add_version(session, dataset, number)
    return dataset


def add_version(session: Session, dataset: Dataset, number: int, **changes: Any) -> DatasetVersion:
    """Add a version, ready unless something else is said."""
    fields = {
        "state": VersionState.READY,
        "digest": DIGEST,
        "file_count": 3,
        "total_bytes": 2 * TIB,
    } | changes
    version = DatasetVersion(
        tenant_id=dataset.tenant_id,
        dataset_id=dataset.id,
        number=number,
        created_at=NOON,
        active_at=NOON,
        **fields,
    )
    dataset.last_number = max(dataset.last_number, number)
    session.add(version)
    session.flush()
    session.expire(dataset)
    return version


def add_stager(
    session: Session, tenant: Tenant, name: str, *, site: str = "oslo", **changes: Any
) -> Appliance:
    """Add an appliance whose agent fetches datasets, as it has reported once."""
    appliance = add_appliance(session, tenant, name, can_stage=True, **changes)
    appliance.site = site
    session.flush()
    report_copies(session, appliance)
    return appliance


def report_copies(session: Session, appliance: Appliance, *copies: DatasetCopy) -> None:
    """Let an appliance report all that its cache has."""
    url = f"https://{appliance.name}:7443"
    record_report(session, appliance.id, DatasetReport(copies=list(copies), peer_url=url), now=NOON)
    for row in list(session.identity_map.values()):
        if isinstance(row, DatasetCopyRecord):
            session.expire(row)


def copy_of(version: DatasetVersion, *, cached_bytes: int | None = None) -> DatasetCopy:
    """Return a whole copy, or a part of one that is being fetched."""
    if cached_bytes is None:
        cached_bytes = version.total_bytes
    is_whole = cached_bytes == version.total_bytes
    state = CopyState.COMPLETE if is_whole else CopyState.FETCHING
    return DatasetCopy(version_id=version.id, state=state, cached_bytes=cached_bytes)


def allow_peers(session: Session, tenant: Tenant) -> None:
    """Let the appliances of a tenant's sites serve each other."""
    session.add(TenantDataSettings(tenant_id=tenant.id, allows_peers=True))
    session.flush()

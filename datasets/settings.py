"""The data settings of a tenant: where results go, how long they stay, and who serves datasets."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from datasets.models import DataConnection, TenantDataSettings
from datasets.targets import notify_caches
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant

MAX_DAYS = 3650
_S3 = "s3://"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The settings of a tenant.

    Attributes:
        results_connection_id: of the bucket for results of jobs; None is the portal's store.
        results_retention_days: after which results are deleted; None is as long as their jobs.
        allows_peers: whether appliances of one site fetch datasets from each other.
    """

    results_connection_id: str | None = None
    results_retention_days: int | None = None
    allows_peers: bool = False


def read_settings(session: Session, scope: Scope, tenant_id: str) -> DataSettings:
    """Return the settings of a tenant in the scope."""
    return settings_of(session, get_tenant(session, scope, tenant_id).id)


def settings_of(session: Session, tenant_id: str) -> DataSettings:
    """Return the settings of a tenant."""
    row = session.get(TenantDataSettings, tenant_id)
    if row is None:
        return DataSettings()
    return msgspec.convert(row, DataSettings, from_attributes=True)


def set_settings(
    session: Session, scope: Scope, tenant_id: str, settings: DataSettings
) -> DataSettings:
    """Set the settings of a tenant; they apply from now on.

    Raises:
        InvalidInputError: names every invalid field.
    """
    scope.require(Permission.MANAGE_DATA)
    get_tenant(session, scope, tenant_id)
    errors = {name: [text] for name, text in _errors(session, tenant_id, settings)}
    if errors:
        details = " ".join(text for (text,) in errors.values())
        raise InvalidInputError(f"The data settings were not changed. {details}", errors=errors)
    row = session.get(TenantDataSettings, tenant_id)
    if row is None:
        row = TenantDataSettings(tenant_id=tenant_id, allows_peers=False)
        session.add(row)
    has_other_peers = row.allows_peers != settings.allows_peers
    for name, value in asdict(settings).items():
        setattr(row, name, value)
    session.flush()
    if has_other_peers:
        notify_caches(session, tenant_id)
    return settings


def bucket_choices(session: Session, tenant_id: str) -> list[tuple[str, str]]:
    """Return the ids and names of the connections of a tenant that results can go to."""
    rows = session.execute(
        select(DataConnection.id, DataConnection.name)
        .where(DataConnection.tenant_id == tenant_id, DataConnection.url.startswith(_S3))
        .order_by(DataConnection.name)
    )
    return [(ident, name) for ident, name in rows]


def _errors(session: Session, tenant_id: str, settings: DataSettings) -> Iterator[tuple[str, str]]:
    days = settings.results_retention_days
    if days is not None and not 1 <= days <= MAX_DAYS:
        yield (
            "results_retention_days",
            f"results_retention_days is {days}; enter 1 to {MAX_DAYS}, or leave it empty.",
        )
    ident = settings.results_connection_id
    if ident is None:
        return
    connection = session.get(DataConnection, ident)
    if connection is None or connection.tenant_id != tenant_id:
        text = f"There is no data connection {ident[:40]!r}."
        yield "results_connection_id", f"{text} Choose one of the tenant's, or the portal's store."
    elif not connection.url.startswith(_S3):
        text = f"Results can't go to {connection.name!r} ({connection.url})."
        yield "results_connection_id", f"{text} Choose a bucket: its address begins with s3://."

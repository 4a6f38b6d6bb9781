"""What of the platform wants looking after: counts and sizes for pages and REST."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from alerting.models import Notification
from alerting.stuck import list_stuck as list_stuck_messages
from core.paging import Page
from core.settings import ServerSettings
from jobqueue.cleaning import JobUpkeep, job_upkeep
from jobqueue.cleaning import list_stuck as list_stuck_jobs
from jobqueue.models import Job
from tenants.customers.pruning import count_useless
from tenants.customers.usage import file_bytes
from tenants.models import Appliance, ApplianceCertificate, Tenant
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store_url import parse_store_url

JOBS_KEPT_DAYS = 90
EXPIRES_SOON = timedelta(days=2)
LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringCertificate:
    """A certificate that its agent should have renewed by now."""

    appliance_id: str
    appliance_name: str
    tenant_name: str
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """All of the housekeeping; sizes that can't be known are None."""

    jobs: JobUpkeep
    stuck_jobs: Page[Job]
    messages: Page[Notification]
    certificates: list[ExpiringCertificate]
    useless: dict[str, int]
    database_bytes: int | None
    store_bytes: int | None
    store_place: str
    sample_retention_days: int
    minute_retention_days: int
    hour_retention_days: int


def upkeep(
    session: Session, scope: Scope, settings: ServerSettings, *, page: int = 1, now: datetime
) -> Upkeep:
    """Return what wants looking after; `page` is of the messages."""
    scope.require(Permission.OPERATE)
    store_url = settings.resolved_timeseries_url
    return Upkeep(
        jobs=job_upkeep(session, scope, ended_before=ended_before(now), now=now),
        stuck_jobs=list_stuck_jobs(session, scope, now=now, page_size=LISTED),
        messages=list_stuck_messages(session, scope, now=now, page=page, page_size=LISTED),
        certificates=expiring_certificates(session, now=now),
        useless=count_useless(session, now=now),
        database_bytes=database_bytes(session),
        store_bytes=file_bytes(store_url),
        store_place=parse_store_url(store_url).redacted,
        sample_retention_days=settings.sample_retention_days,
        minute_retention_days=settings.minute_retention_days,
        hour_retention_days=settings.hour_retention_days,
    )


def ended_before(now: datetime) -> datetime:
    """Return the instant before which a job ended long ago."""
    return now - timedelta(days=JOBS_KEPT_DAYS)


def expiring_certificates(session: Session, *, now: datetime) -> list[ExpiringCertificate]:
    """Return certificates in use that end soon, the first to end first.

    Agents renew theirs in time by themselves: one that is here does not reach the portal.
    """
    one = ApplianceCertificate
    statement = (
        select(Appliance.id, Appliance.name, Tenant.name, one.not_after)
        .join(Appliance, Appliance.id == one.appliance_id)
        .join(Tenant, Tenant.id == one.tenant_id)
        .where(
            one.revoked_at.is_(None),
            one.replaced_at.is_(None),
            one.not_after > now,
            one.not_after < now + EXPIRES_SOON,
            Appliance.revoked_at.is_(None),
            Appliance.retired_at.is_(None),
        )
        .order_by(one.not_after)
        .limit(LISTED)
    )
    return [
        ExpiringCertificate(
            appliance_id=row[0], appliance_name=row[1], tenant_name=row[2], not_after=row[3]
        )
        for row in session.execute(statement)
    ]


def database_bytes(session: Session) -> int | None:
    """Return how large the database is."""
    if session.get_bind().dialect.name == "sqlite":
        pages = session.scalar(text("PRAGMA page_count")) or 0
        return int(pages) * int(session.scalar(text("PRAGMA page_size")) or 0)
    statement = select(func.sum(text("data_length + index_length"))).select_from(
        text("information_schema.tables")
    )
    size = session.scalar(statement.where(text("table_schema = DATABASE()")))
    return None if size is None else int(size)

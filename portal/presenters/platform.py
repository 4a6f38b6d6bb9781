"""Platform usage, quotas and maintenance, for operators' pages and REST resources."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select, text
from sqlalchemy.orm import Session

from alerting.notification.receivers import count_receivers
from alerting.notification.undelivered import list_undelivered
from alerting.rules.service import count_rules
from backup.contents import left_out
from backup.runs import backup_status
from core.settings import ServerSettings
from dash_app.custom.dashboards import count_dashboards
from dash_app.queries.platform import PlatformFigures, platform_figures, ratio_of
from jobqueue.queue.retention import delete_ended, job_retention, list_stuck_jobs
from jobqueue.queue.schedules import count_schedules
from jobqueue.queue.service import active_jobs, waiting_jobs
from portal.context import current_scope, database, in_parts, now, portal
from tenants.lifecycle.message_budgets import ALERTS, MESSAGES, MessageBudgets, sent_messages
from tenants.lifecycle.pruning import count_prunable
from tenants.lifecycle.usage import file_bytes, latest_usage, sample_counts
from tenants.models import Appliance, ApplianceCertificate, Tenant
from tenants.permissions import Permission
from tenants.quotas import WARN_RATIO, Limits, count_appliances, count_gpus, limits_of
from tenants.scope import Scope
from timeseries.store_url import parse_store_url

JOBS_KEPT_DAYS = 90
MOST_DELETED = 500
_COUNTS: Mapping[str, Callable[[Session, str], int]] = {
    "waiting_jobs": waiting_jobs,
    "rules": count_rules,
    "receivers": count_receivers,
    "schedules": count_schedules,
    "dashboards": count_dashboards,
}
EXPIRES_SOON = timedelta(days=2)
LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Usage of one resource; `used` is None if unknown, `limit` None without one."""

    name: str
    used: int | None
    limit: int | None
    effect: str
    is_bytes: bool = False

    @property
    def percent(self) -> float | None:
        """Return the usage in percent of the limit."""
        if self.limit is None or self.used is None:
            return None
        return 100 * ratio_of(self.used, self.limit)

    @property
    def is_near(self) -> bool:
        """Return whether usage is close to the limit."""
        return self.percent is not None and self.percent >= 100 * WARN_RATIO

    @property
    def is_reached(self) -> bool:
        """Return whether the limit is reached."""
        return self.percent is not None and self.percent >= 100  # noqa: PLR2004 - percent


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """A tenant's usage and quotas; storage as of `measured_at`."""

    limits: Limits
    uses: tuple[Use, ...]
    measured_at: datetime | None


def figures() -> PlatformFigures:
    """Return platform usage, cached for a minute."""
    scope, store, at = current_scope(), portal().store, now()
    scope.require(Permission.OPERATE)

    def find() -> PlatformFigures:
        with database() as session:
            return platform_figures(session, store, scope, now=at)

    return portal().minute.get("figures", find)


def tenant_use(session: Session, tenant_id: str) -> TenantUse:
    """Return a tenant's usage; the caller checks permissions."""
    limits = limits_of(session, tenant_id)
    measured = latest_usage(session, [tenant_id]).get(tenant_id)
    counts = sample_counts(session, [tenant_id], now=now()).get(tenant_id)
    uses = (
        Use(
            name="Appliances",
            used=count_appliances(session, tenant_id),
            limit=limits.max_appliances,
            effect="No more appliances can enroll.",
        ),
        Use(
            name="GPUs",
            used=count_gpus(session, tenant_id),
            limit=limits.max_gpus,
            effect="No more appliances with GPUs can enroll.",
        ),
        Use(
            name="Active jobs",
            used=active_jobs(session, tenant_id),
            limit=limits.max_active_jobs,
            effect="No more jobs can be submitted until one ends.",
        ),
        Use(
            name="Storage",
            used=None if measured is None else measured.storage_bytes,
            limit=limits.max_storage_bytes,
            is_bytes=True,
            effect="New samples are rejected. Agents buffer and retry them.",
        ),
        *(
            Use(
                name=name.capitalize(),
                used=None if counts is None else getattr(counts, name),
                limit=_limit_of(limits, name),
                effect=f"Samples of new {name} are rejected.",
            )
            for name in ("series", "measurements", "fields")
        ),
        *(
            Use(
                name=name.replace("_", " ").capitalize(),
                used=count(session, tenant_id),
                limit=limits.limit(name),
                effect=f"No more {name.replace('_', ' ')} are accepted.",
            )
            for name, count in _COUNTS.items()
        ),
    )
    uses += _message_uses(session, tenant_id)
    return TenantUse(
        limits=limits, uses=uses, measured_at=None if measured is None else measured.measured_at
    )


def _message_uses(session: Session, tenant_id: str) -> tuple[Use, ...]:
    budgets, scope = MessageBudgets.of(portal().settings), current_scope()
    sent = sent_messages(session, now=now())
    subjects = {
        MESSAGES: ("Messages this hour", "They are sent when the next hour begins."),
        ALERTS: ("Alert messages this hour", "Current states are sent in the next hour."),
    }
    if scope.tenant_id == tenant_id:
        effect = "You can't send tests, invitations and reports until the next hour."
        subjects[scope.user_id] = ("Your messages this hour", effect)
    return tuple(
        Use(
            name=name,
            used=sent.get((tenant_id, subject), 0),
            limit=budgets.limit(subject) or None,
            effect=effect,
        )
        for subject, (name, effect) in subjects.items()
    )


def _limit_of(limits: Limits, name: str) -> int | None:
    own: int | None = getattr(limits, f"max_{name}")
    if own is not None:
        return own
    return getattr(portal().settings, f"max_{name}_per_tenant") or None


def delete_old_jobs(scope: Scope) -> int:
    """Delete up to `MOST_DELETED` jobs that ended long ago, in parts; return how many."""
    deleted, at = 0, now()

    def delete_part(session: Session) -> tuple[int, bool]:
        nonlocal deleted
        count = delete_ended(session, scope, before=ended_before(at), now=at)
        deleted += count
        return deleted, not count or deleted >= MOST_DELETED

    return in_parts(delete_part)


def maintenance_summary(
    session: Session, scope: Scope, settings: ServerSettings, *, page: int = 1, now: datetime
) -> dict[str, Any]:
    """Return what the maintenance page shows; `page` is that of undelivered notifications."""
    scope.require(Permission.OPERATE)
    store_url = settings.resolved_timeseries_url
    return {
        "jobs": job_retention(session, scope, ended_before=ended_before(now), now=now),
        "stuck_jobs": list_stuck_jobs(session, scope, now=now, page_size=LISTED),
        "notifications": list_undelivered(session, scope, now=now, page=page, page_size=LISTED),
        "certificates": expiring_certificates(session, now=now),
        "prunable": count_prunable(session, now=now),
        "database_bytes": database_bytes(session),
        "store_bytes": file_bytes(store_url),
        "store_place": parse_store_url(store_url).redacted,
        "sample_retention_days": settings.sample_retention_days,
        "five_minute_retention_days": settings.five_minute_retention_days,
        "hour_retention_days": settings.hour_retention_days,
        "backups": _backups(session, settings, now=now),
    }


def _backups(session: Session, settings: ServerSettings, *, now: datetime) -> dict[str, Any]:
    status = backup_status(session)
    interval = timedelta(seconds=settings.backup_interval_seconds)
    return {
        "status": status,
        "is_configured": bool(settings.backup_url),
        "is_overdue": bool(settings.backup_url) and status.is_overdue(interval, now=now),
        "interval_seconds": settings.backup_interval_seconds,
        "retention_days": settings.backup_retention_days,
        "left_out": left_out(settings),
    }


def ended_before(now: datetime) -> datetime:
    """Return the end time before which a job counts as old."""
    return now - timedelta(days=JOBS_KEPT_DAYS)


def expiring_certificates(
    session: Session, *, now: datetime
) -> Sequence[Row[str, str, str, datetime]]:
    """Return certificates in use that expire soon because their agents did not renew them."""
    certificates = ApplianceCertificate
    statement = (
        select(
            Appliance.id.label("appliance_id"),
            Appliance.name.label("appliance_name"),
            Tenant.name.label("tenant_name"),
            certificates.not_after,
        )
        .join(Appliance, Appliance.id == certificates.appliance_id)
        .join(Tenant, Tenant.id == certificates.tenant_id)
        .where(
            certificates.revoked_at.is_(None),
            certificates.replaced_at.is_(None),
            certificates.not_after > now,
            certificates.not_after < now + EXPIRES_SOON,
            Appliance.revoked_at.is_(None),
            Appliance.retired_at.is_(None),
        )
        .order_by(certificates.not_after)
        .limit(LISTED)
    )
    return session.execute(statement).all()


def database_bytes(session: Session) -> int | None:
    """Return the size of the database."""
    if session.get_bind().dialect.name == "sqlite":
        pages = session.scalar(text("PRAGMA page_count")) or 0
        return int(pages) * int(session.scalar(text("PRAGMA page_size")) or 0)
    statement = select(func.sum(text("data_length + index_length"))).select_from(
        text("information_schema.tables")
    )
    size = session.scalar(statement.where(text("table_schema = DATABASE()")))
    return None if size is None else int(size)

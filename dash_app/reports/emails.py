"""Saved reports as emails: those that are due are computed, and added to the outbox.

The next time is moved by a guarded update in the transaction that adds the emails, so that each run
is emailed once, however many schedulers try.
"""

import logging
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from alerting.notification.models import MAX_FILE_BYTES, NotificationFile
from alerting.notification.notices import add_notice
from core.db import SessionFactory, changed_one, transaction
from core.errors import ConflictError, InvalidInputError, UnavailableError, VedetteError
from dash_app.reports.builders import build
from dash_app.reports.formats import MEDIA_TYPES, content
from dash_app.reports.models import SavedReport
from dash_app.reports.report import Report, Unit, shown
from dash_app.reports.saved import ITEMS, active_members, following, request_of
from dash_app.reports.source import Source
from tenants.lifecycle.message_budgets import MessageBudgets, charge_user
from tenants.models import Role, Tenant, TenantState
from tenants.scope import Scope
from timeseries.store import Store

logger = logging.getLogger(__name__)

BATCH = 20
RETRY_AFTER = timedelta(minutes=5)
NO_BUDGETS = MessageBudgets()
# Undelivered emails can be retried for as long.
FILE_LIFETIME = timedelta(days=7)


def email_due(sessions: SessionFactory, store: Store, *, public_url: str, now: datetime) -> int:
    """Add the emails of the saved reports that are due to the outbox; return their number.

    Several times that passed while no scheduler ran are one email. A report whose samples are
    unavailable is tried again in a few minutes, or at its next time if that is earlier.
    """
    due = (
        select(SavedReport)
        .join(Tenant, Tenant.id == SavedReport.tenant_id)
        .where(SavedReport.next_run_at <= now, Tenant.state == TenantState.ACTIVE)
        .order_by(SavedReport.next_run_at)
        .limit(BATCH)
    )
    with transaction(sessions) as session:
        due_reports = list(session.scalars(due).unique())
    count = 0
    for saved in due_reports:
        file, text, error = None, "", ""
        next_run_at = following(saved, now)
        try:
            file, text = _rendered(sessions, store, saved, now=now)
        except UnavailableError as problem:
            error = f"{problem.message} It is tried again."
            next_run_at = min(next_run_at or datetime.max.replace(tzinfo=UTC), now + RETRY_AFTER)
        except VedetteError as problem:
            error = problem.message
        except Exception:
            logger.exception("saved report %s failed", saved.id)
            error = "Internal error. The log of the scheduler has the details."
        moved = (
            update(SavedReport)
            .where(SavedReport.id == saved.id, SavedReport.next_run_at == saved.next_run_at)
            .values(next_run_at=next_run_at, last_run_at=now, last_error=error)
        )
        with transaction(sessions) as session:
            if changed_one(session, moved, synchronize_session=False) and file is not None:
                count += _add_emails(session, saved, file, text, public_url=public_url, now=now)
    return count


def email_now(
    sessions: SessionFactory,
    store: Store,
    scope: Scope,
    report_id: str,
    *,
    public_url: str,
    budgets: MessageBudgets = NO_BUDGETS,
    now: datetime,
) -> int:
    """Add the emails of a saved report to the outbox now; return their number.

    Raises:
        ConflictError: it has no recipients.
        OverloadedError: the user or the tenant has sent as many messages as allowed.
    """
    with transaction(sessions) as session:
        saved = ITEMS.changeable(session, scope, report_id)
        if not saved.recipients:
            raise ConflictError(f"{saved.name!r} has no recipients. Add one first.")
        charge_user(session, scope, budgets, now=now)
    file, text = _rendered(sessions, store, saved, now=now)
    with transaction(sessions) as session:
        return _add_emails(session, saved, file, text, public_url=public_url, now=now)


def delete_files(sessions: SessionFactory, *, now: datetime) -> None:
    """Delete the files of emails that are older than their lifetime."""
    with transaction(sessions) as session:
        old = delete(NotificationFile).where(NotificationFile.created_at <= now - FILE_LIFETIME)
        session.execute(old, execution_options={"synchronize_session": False})


def _rendered(
    sessions: SessionFactory, store: Store, saved: SavedReport, *, now: datetime
) -> tuple[NotificationFile, str]:
    """Return the file of a saved report, and its totals as text."""
    # Every user of a tenant sees its reports, so it doesn't matter whose scope this is.
    scope = Scope(user_id=saved.user_id, role=Role.VIEWER, tenant_id=saved.tenant_id)
    request = request_of(saved, now)
    with transaction(sessions) as session:
        source = Source(session=session, store=store, scope=scope, request=request, now=now)
        report = build(source)
    data = b"".join(content(report, saved.file_format))
    if len(data) > MAX_FILE_BYTES:
        message = f"The file has {len(data):,} bytes, more than {MAX_FILE_BYTES:,}."
        raise InvalidInputError(f"{message} Choose a shorter period or another grouping.")
    file = NotificationFile(
        tenant_id=saved.tenant_id,
        name=f"{report.file_name}.{saved.file_format}",
        media_type=MEDIA_TYPES[saved.file_format],
        content=data,
        created_at=now,
    )
    return file, _totals(report)


def _add_emails(
    session: Session,
    saved: SavedReport,
    file: NotificationFile,
    text: str,
    *,
    public_url: str,
    now: datetime,
) -> int:
    members = active_members(session, saved.tenant_id)
    addresses = [members[member_id].email for member_id in saved.recipients if member_id in members]
    payload = {
        "subject": f"Report: {saved.name}",
        "text": text,
        "link": f"{public_url}/reports/saved/{saved.id}",
        "link_name": "Open the report",
    }
    for address in addresses:
        add_notice(session, saved.tenant_id, payload, address=address, file=file, now=now)
    return len(addresses)


def _totals(report: Report) -> str:
    """Return what the report is about and its totals, as one paragraph."""
    columns = list(zip(report.columns, report.totals, strict=True))[1:]
    figures = [
        f"{column.label} {shown(column, value)} {column.unit if column.has_unit else ''}".strip()
        for column, value in columns
        if value is not None and column.unit is not Unit.TEXT
    ]
    ending = f" In total: {', '.join(figures)}." if report.rows else " There is no data."
    return f"{report.title}: {report.subtitle}.{ending}"

"""`/console`: platform usage, removed tenants and maintenance, for operators."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from alerting.notification import undelivered
from core.errors import ConflictError, UnavailableError
from dash_app.routes import PLATFORM_PATH
from portal.context import current_scope, database, now, portal
from portal.pages.common import Pages, changing, plural
from portal.presenters.platform import JOBS_KEPT_DAYS, delete_old_jobs, figures, maintenance_summary
from portal.presenters.removals import discard_removed, export_response
from portal.query_string import PAGE_SIZE, asked_page, page_number
from tenants.fleet.access_points import access_point_problems
from tenants.lifecycle.removal import list_removals
from tenants.lifecycle.server_processes import broker_states, list_processes

pages = Pages("console", __name__, url_prefix="/console")

TOP = 10


@pages.get("")
def index() -> ResponseReturnValue:
    """Show platform usage and the tenants that use most."""
    usage = figures()
    with database() as session:
        processes = list_processes(
            session, current_scope(), now=now(), sort="name", page_size=PAGE_SIZE
        )
        brokers = broker_states(session, now=now())
        problems = access_point_problems(session, now=now())
    return render_template(
        "console/index.html",
        usage=usage,
        top=usage.tenants[:TOP],
        processes=processes.items,
        brokers=brokers,
        problems=problems,
        charts=PLATFORM_PATH,
    )


@pages.get("/removals")
def removals() -> ResponseReturnValue:
    """List removed tenants and removals in progress."""
    with database() as session:
        page = list_removals(session, current_scope(), **asked_page())
    return render_template("console/removals.html", page=page)


@pages.get("/removals/<removal_id>/export")
def export(removal_id: str) -> ResponseReturnValue:
    """Download the export of a removed tenant."""
    return export_response(removal_id)


@pages.post("/removals/<removal_id>/discard")
def discard(removal_id: str) -> ResponseReturnValue:
    """Delete the export of a removed tenant."""
    try:
        flash(f"Export of {discard_removed(removal_id).tenant_name} deleted", "success")
    except (ConflictError, UnavailableError) as error:
        flash(error.message, "warning")
    return redirect(url_for(".removals"))


@pages.get("/maintenance")
def maintenance() -> ResponseReturnValue:
    """Show undelivered notifications, stuck jobs, expiring certificates and storage."""
    with database() as session:
        summary = maintenance_summary(
            session, current_scope(), portal().settings, page=page_number(), now=now()
        )
    return render_template(
        "console/maintenance.html", summary=summary, jobs_kept_days=JOBS_KEPT_DAYS
    )


@pages.post("/maintenance/jobs/clean")
def clean_jobs() -> ResponseReturnValue:
    """Delete old jobs."""
    flash(f"{plural(delete_old_jobs(current_scope()), 'job')} deleted", "success")
    return redirect(url_for(".maintenance"))


pages.acts(
    "/maintenance/notifications/<notification_id>/retry",
    undelivered.retry,
    "Notification queued for retry",
    back=".maintenance",
    name="retry_notification",
)
pages.acts(
    "/maintenance/notifications/<notification_id>/discard",
    undelivered.discard,
    "Notification discarded",
    back=".maintenance",
    name="discard_notification",
)


@pages.post("/maintenance/notifications/retry-all")
@changing(back=".maintenance")
def retry_notifications(session: Session) -> str:
    """Retry all failed notifications."""
    count = undelivered.retry_all(session, current_scope(), now=now())
    return f"{plural(count, 'notification')} queued for retry"


@pages.post("/maintenance/notifications/discard-all")
@changing(back=".maintenance")
def discard_notifications(session: Session) -> str:
    """Discard all failed notifications."""
    count = undelivered.discard_all(session, current_scope(), now=now())
    return f"{plural(count, 'notification')} discarded"

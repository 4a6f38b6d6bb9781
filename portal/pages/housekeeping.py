"""`/housekeeping`: what of the platform wants looking after."""

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from werkzeug import Response

from alerting.stuck import discard, discard_all, retry, retry_all
from core.errors import ConflictError
from jobqueue.cleaning import delete_ended
from portal.context import current_scope, database, now, portal
from portal.pages.paging import page_number
from portal.showing.upkeep import JOBS_KEPT_DAYS, ended_before, upkeep

pages = Blueprint("housekeeping", __name__)


@pages.get("/housekeeping")
def index() -> ResponseReturnValue:
    """Show it all."""
    with database() as session:
        found = upkeep(session, current_scope(), portal().settings, page=page_number(), now=now())
    return render_template("console/housekeeping.html", found=found, jobs_kept_days=JOBS_KEPT_DAYS)


@pages.post("/housekeeping/jobs/clean")
def clean_jobs() -> ResponseReturnValue:
    """Delete jobs that ended long ago."""
    with database() as session:
        count = delete_ended(session, current_scope(), before=ended_before(now()), now=now())
    flash(f"{count} jobs are deleted, with their attempts and logs.", "success")
    return _back()


@pages.post("/housekeeping/messages/<notification_id>/retry")
def retry_message(notification_id: str) -> ResponseReturnValue:
    """Try a message again."""
    try:
        with database() as session:
            retry(session, current_scope(), notification_id, now=now())
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash("The message is tried again now.", "success")
    return _back()


@pages.post("/housekeeping/messages/<notification_id>/discard")
def discard_message(notification_id: str) -> ResponseReturnValue:
    """Give a message up."""
    try:
        with database() as session:
            discard(session, current_scope(), notification_id, now=now())
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash("The message is discarded.", "success")
    return _back()


@pages.post("/housekeeping/messages/retry-all")
def retry_messages() -> ResponseReturnValue:
    """Try all messages again that were given up."""
    with database() as session:
        count = retry_all(session, current_scope(), now=now())
    flash(f"{count} messages are tried again now.", "success")
    return _back()


@pages.post("/housekeeping/messages/discard-all")
def discard_messages() -> ResponseReturnValue:
    """Delete all messages that were given up."""
    with database() as session:
        count = discard_all(session, current_scope(), now=now())
    flash(f"{count} messages are discarded.", "success")
    return _back()


def _back() -> Response:
    return redirect(url_for(".index"))

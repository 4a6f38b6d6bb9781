"""`/reports/saved`: saved reports, their schedules, and the reports themselves."""

from datetime import timedelta
from functools import partial
from zoneinfo import ZoneInfo

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from dash_app.reports.builders import TITLES
from dash_app.reports.emails import email_now
from dash_app.reports.models import SavedReport
from dash_app.reports.saved import (
    ITEMS,
    active_members,
    create_saved,
    delete_saved,
    enable_saved,
    get_saved,
    list_saved,
    replace_saved,
    request_of,
)
from portal.context import current_scope, current_user, database, now, portal, public_url
from portal.forms.reports import PERIODS, RENAMED, SavedReportForm, values_of
from portal.mail import can_send
from portal.pages.common import Pages, changing, plural
from portal.presenters.reports import arranged, built, report_file, table_of
from portal.query_string import asked_page
from tenants.lifecycle.message_budgets import MessageBudgets
from tenants.permissions import Permission

pages = Pages("saved_reports", __name__)


@pages.get("/reports/saved")
def index() -> ResponseReturnValue:
    """List the saved reports."""
    with database() as session:
        page = list_saved(session, current_scope(), **asked_page())
    return render_template("reports/saved.html", page=page, titles=TITLES, periods=PERIODS)


@pages.form("/reports/saved/new")
def add() -> ResponseReturnValue:
    """Save a report, with the choices in the address."""
    scope = current_scope()
    scope.require(Permission.SAVE_REPORTS)
    tenant_id = scope.require_tenant()
    chosen = {name: request.args.get(name, "") for name in ("kind", "by", "appliances")}
    form = SavedReportForm(data={**chosen, "recipients": [current_user().email]})
    for field in (form.price, form.target):
        if field.name in request.args and not form.is_submitted():
            field.process_formdata([request.args[field.name]])
    with database() as session:
        form.offer(active_members(session, tenant_id).values())
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            with database() as session:
                saved = create_saved(session, scope, form.request(), now=now())
            flash(f"Report {saved.name} saved", "success")
            return redirect(url_for(".show", saved_report_id=saved.id))
    return _rendered_form(form, None)


@pages.get("/reports/saved/<saved_report_id>")
def show(saved_report_id: str) -> ResponseReturnValue:
    """Show a saved report and its schedule."""
    with database() as session:
        saved = get_saved(session, current_scope(), saved_report_id)
        members = active_members(session, saved.tenant_id)
    table = table_of(request_of(saved, now()))
    period, zone = table["report"].request.period, ZoneInfo(saved.time_zone)
    return render_template(
        "reports/saved_report.html",
        first_day=period.since.astimezone(zone).date(),
        last_day=(period.until - timedelta(microseconds=1)).astimezone(zone).date(),
        saved=saved,
        emails=[members[user_id].email for user_id in saved.recipients if user_id in members],
        periods=PERIODS,
        may_change=ITEMS.may_change(current_scope(), saved),
        can_send=can_send(portal().settings),
        **table,
    )


@pages.form("/reports/saved/<saved_report_id>/edit")
def edit(saved_report_id: str) -> ResponseReturnValue:
    """Change a saved report."""
    scope = current_scope()
    with database() as session:
        saved = ITEMS.changeable(session, scope, saved_report_id)
        members = active_members(session, saved.tenant_id)
    emails = [members[user_id].email for user_id in saved.recipients if user_id in members]
    form = SavedReportForm(data=values_of(saved, emails))
    form.offer(members.values())
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            with database() as session:
                replace_saved(session, scope, saved_report_id, form.request(), now=now())
            flash("Changes saved", "success")
            return redirect(url_for(".show", saved_report_id=saved_report_id))
    return _rendered_form(form, saved)


@pages.get("/reports/saved/<saved_report_id>/export")
def export(saved_report_id: str) -> ResponseReturnValue:
    """Download a saved report."""
    with database() as session:
        saved = get_saved(session, current_scope(), saved_report_id)
    return report_file(arranged(built(request_of(saved, now()))), saved.file_format)


@pages.post("/reports/saved/<saved_report_id>/send")
@changing(back=".show")
def send(_session: Session, saved_report_id: str) -> str:
    """Email a saved report now."""
    count = email_now(
        portal().sessions,
        portal().store,
        current_scope(),
        saved_report_id,
        public_url=public_url(),
        budgets=MessageBudgets.of(portal().settings),
        now=now(),
    )
    return f"{plural(count, 'email')} added to the outbox"


pages.acts(
    "/reports/saved/<saved_report_id>/resume",
    partial(enable_saved, is_enabled=True),
    "Emails resumed",
    back=".show",
)
pages.acts(
    "/reports/saved/<saved_report_id>/pause",
    partial(enable_saved, is_enabled=False),
    "Emails paused",
    back=".show",
)
pages.acts("/reports/saved/<saved_report_id>/delete", delete_saved, "Report {} deleted")


def _rendered_form(form: SavedReportForm, saved: SavedReport | None) -> ResponseReturnValue:
    text = render_template(
        "reports/edit.html",
        form=form,
        saved=saved,
        title=TITLES[form.report_kind],
        can_send=can_send(portal().settings),
    )
    return text, form.status

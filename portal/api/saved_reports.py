"""`/saved-reports`: reports with a name, and the schedules on which they are emailed."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from dash_app.custom.files import ChangeAction
from dash_app.reports.emails import email_now
from dash_app.reports.models import ReportPeriod, SavedReport
from dash_app.reports.report import FileFormat, ReportBy, ReportKind
from dash_app.reports.saved import (
    ITEMS,
    SAVED_SORTS,
    SavedReportRequest,
    active_members,
    apply_saved,
    create_saved,
    delete_saved,
    enable_saved,
    get_saved,
    list_saved,
    replace_saved,
    request_of,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.reports import REPORT_FILE
from portal.api.schemas import StrictSchema, about, instant, page_of, page_query, whole_list
from portal.context import current_scope, database, now, portal, public_url
from portal.presenters.reports import DEFAULT_TARGET, built, report_file
from tenants.lifecycle.message_budgets import MessageBudgets
from tenants.permissions import Permission

saved_reports = APIBlueprint(
    "Saved reports",
    "/saved-reports",
    "Reports with a name, which are emailed to users of the tenant on a schedule.",
    changes=Permission.SAVE_REPORTS,
)


class SavedReportSchema(Schema):
    """A saved report."""

    id = fields.String()
    name = fields.String()
    user_email = fields.String(attribute="user.email")
    kind = fields.Enum(ReportKind, by_value=True)
    by = fields.Enum(ReportBy, by_value=True)
    period = fields.Enum(ReportPeriod, by_value=True)
    time_zone = fields.String()
    appliances = fields.String()
    price_per_kilowatt_hour = fields.Float()
    target_percent = fields.Float()
    schedule = fields.String()
    file_format = fields.Enum(FileFormat, by_value=True)
    recipients = fields.List(fields.String(), **about("Active ones."))
    is_enabled = fields.Boolean()
    next_run_at = instant()
    last_run_at = instant()
    last_error = fields.String()


class SavedReportRequestSchema(StrictSchema):
    """A report to save; without a schedule it is not emailed."""

    name = fields.String(required=True)
    kind = fields.Enum(ReportKind, by_value=True, required=True)
    by = fields.Enum(ReportBy, by_value=True, required=True)
    period = fields.Enum(
        ReportPeriod,
        by_value=True,
        required=True,
        **about("Whole days before today in the time zone."),
    )
    time_zone = fields.String(
        load_default="UTC", **about("Of days and of cron times, such as `Europe/Oslo`.")
    )
    appliances = fields.String(load_default="", **about("As in `/reports`."))
    price_per_kilowatt_hour = fields.Float(load_default=0.0)
    target_percent = fields.Float(load_default=DEFAULT_TARGET)
    schedule = fields.String(
        load_default="",
        **about(
            "Cron such as `0 7 * * 1`, or an ISO 8601 repeating interval; at most 24 times a day."
        ),
    )
    file_format = fields.Enum(FileFormat, by_value=True, load_default=FileFormat.PDF)
    recipients = fields.List(
        fields.String(), load_default=list, **about("Email addresses of users of the tenant.")
    )


class SavedReportFileSchema(StrictSchema):
    """The saved reports of a file."""

    reports = fields.List(
        fields.Nested(SavedReportRequestSchema),
        required=True,
        validate=validate.Length(max=ITEMS.max_items),
    )
    is_dry_run = fields.Boolean(load_default=False, **about("Only return what would change."))


class SavedReportChangeSchema(Schema):
    """The change of a saved report when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)


class SentSchema(Schema):
    """The emails that were added to the outbox."""

    emails = fields.Integer()


def _shown(session: Session, reports: Sequence[SavedReport]) -> list[dict[str, Any]]:
    """Return saved reports with the addresses of their recipients."""
    shown = []
    for saved in reports:
        members = active_members(session, saved.tenant_id)
        values = {column.key: getattr(saved, column.key) for column in saved.__table__.columns}
        emails = [members[user_id].email for user_id in saved.recipients if user_id in members]
        shown.append({**values, "user": saved.user, "recipients": emails})
    return shown


objects = Objects(
    saved_reports,
    "/<saved_report_id>",
    read=get_saved,
    answer=SavedReportSchema,
    shown=_shown,
    model=SavedReport,
    body=SavedReportRequestSchema,
    request=SavedReportRequest,
)
objects.lists(
    "List the saved reports of the tenant.",
    list_saved,
    query=page_query(SAVED_SORTS, default="name"),
)
objects.creates("Save a report.", create_saved)


@saved_reports.operation(
    "POST", "/apply", body=SavedReportFileSchema, answer=page_of(SavedReportChangeSchema)
)
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Create and update saved reports by name to match a file: all of it or nothing."""
    requests = [SavedReportRequest(**report) for report in body["reports"]]
    with database() as session:
        trial = session.begin_nested()
        changes = apply_saved(session, current_scope(), requests, now=now())
        if body["is_dry_run"]:
            trial.rollback()
    return whole_list(changes)


objects.shows("Return a saved report.")
objects.replaces("Replace a saved report of yours; admins replace every one.", replace_saved)
objects.deletes("Delete a saved report of yours; admins delete every one.", delete_saved)
objects.acts(
    "Resume the emails of a saved report, from its next time on.",
    partial(enable_saved, is_enabled=True),
    "resume",
)
objects.acts(
    "Pause the emails of a saved report.", partial(enable_saved, is_enabled=False), "pause"
)


@saved_reports.operation("POST", "/<saved_report_id>/send", answer=SentSchema)
def send(saved_report_id: str) -> dict[str, int]:
    """Email a saved report to its recipients now."""
    emails = email_now(
        portal().sessions,
        portal().store,
        current_scope(),
        saved_report_id,
        public_url=public_url(),
        budgets=MessageBudgets.of(portal().settings),
        now=now(),
    )
    return {"emails": emails}


@saved_reports.operation("GET", "/<saved_report_id>/export", responses=REPORT_FILE)
def export(saved_report_id: str) -> Response:
    """Return the report as it is now, as a file of its format."""
    with database() as session:
        saved = get_saved(session, current_scope(), saved_report_id)
    return report_file(built(request_of(saved, now())), saved.file_format)

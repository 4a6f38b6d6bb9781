"""`/saved-reports`: reports with a name, and the schedules on which they are emailed."""

from functools import partial
from http import HTTPStatus
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
from portal.api.reports import REPORT_FILE
from portal.api.schemas import StrictSchema, envelope, instant, page_of, page_query, whole_list
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
    recipients = fields.List(fields.String(), metadata={"description": "Active ones."})
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
        metadata={"description": "Whole days before today in the time zone."},
    )
    time_zone = fields.String(
        load_default="UTC",
        metadata={"description": "Of days and of cron times, such as `Europe/Oslo`."},
    )
    appliances = fields.String(load_default="", metadata={"description": "As in `/reports`."})
    price_per_kilowatt_hour = fields.Float(load_default=0.0)
    target_percent = fields.Float(load_default=DEFAULT_TARGET)
    schedule = fields.String(
        load_default="",
        metadata={
            "description": "Cron such as `0 7 * * 1`, or an ISO 8601 repeating interval; at most "
            "24 times a day."
        },
    )
    file_format = fields.Enum(FileFormat, by_value=True, load_default=FileFormat.PDF)
    recipients = fields.List(
        fields.String(),
        load_default=list,
        metadata={"description": "Email addresses of users of the tenant."},
    )


class SavedReportFileSchema(StrictSchema):
    """The saved reports of a file."""

    reports = fields.List(
        fields.Nested(SavedReportRequestSchema),
        required=True,
        validate=validate.Length(max=ITEMS.max_items),
    )
    is_dry_run = fields.Boolean(
        load_default=False, metadata={"description": "Only return what would change."}
    )


class SavedReportChangeSchema(Schema):
    """The change of a saved report when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)


class SentSchema(Schema):
    """The emails that were added to the outbox."""

    emails = fields.Integer()


@saved_reports.operation(
    "GET", query=page_query(SAVED_SORTS, default="name"), answer=page_of(SavedReportSchema)
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the saved reports of the tenant."""
    with database() as session:
        page = list_saved(session, current_scope(), **query)
        return envelope(page.of([_shown(session, saved) for saved in page.items]))


@saved_reports.operation(
    "POST", body=SavedReportRequestSchema, answer=SavedReportSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> dict[str, Any]:
    """Save a report."""
    with database() as session:
        request = SavedReportRequest(**body)
        return _shown(session, create_saved(session, current_scope(), request, now=now()))


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


@saved_reports.operation("GET", "/<saved_report_id>", answer=SavedReportSchema)
def show(saved_report_id: str) -> dict[str, Any]:
    """Return a saved report."""
    with database() as session:
        return _read(session, saved_report_id)


@saved_reports.operation(
    "PUT", "/<saved_report_id>", body=SavedReportRequestSchema, answer=SavedReportSchema
)
def replace(saved_report_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Replace a saved report of yours; admins replace every one."""
    with database() as session:
        _check_if_match(session, saved_report_id)
        request, scope = SavedReportRequest(**body), current_scope()
        return _shown(session, replace_saved(session, scope, saved_report_id, request, now=now()))


@saved_reports.operation("DELETE", "/<saved_report_id>", status=HTTPStatus.NO_CONTENT)
def delete(saved_report_id: str) -> None:
    """Delete a saved report of yours; admins delete every one."""
    with database() as session:
        _check_if_match(session, saved_report_id)
        delete_saved(session, current_scope(), saved_report_id)


@saved_reports.operation("POST", "/<saved_report_id>/resume", answer=SavedReportSchema)
def resume(saved_report_id: str) -> dict[str, Any]:
    """Resume the emails of a saved report, from its next time on."""
    return _enable(saved_report_id, is_enabled=True)


@saved_reports.operation("POST", "/<saved_report_id>/pause", answer=SavedReportSchema)
def pause(saved_report_id: str) -> dict[str, Any]:
    """Pause the emails of a saved report."""
    return _enable(saved_report_id, is_enabled=False)


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


def _enable(saved_report_id: str, *, is_enabled: bool) -> dict[str, Any]:
    with database() as session:
        scope = current_scope()
        saved = enable_saved(session, scope, saved_report_id, is_enabled=is_enabled, now=now())
        return _shown(session, saved)


def _check_if_match(session: Session, saved_report_id: str) -> None:
    read = partial(_read, session, saved_report_id)
    saved_reports.check_if_match(session, SavedReport, saved_report_id, read, SavedReportSchema)


def _read(session: Session, saved_report_id: str) -> dict[str, Any]:
    return _shown(session, get_saved(session, current_scope(), saved_report_id))


def _shown(session: Session, saved: SavedReport) -> dict[str, Any]:
    """Return a saved report with the addresses of its recipients."""
    members = active_members(session, saved.tenant_id)
    values = {column.key: getattr(saved, column.key) for column in SavedReport.__table__.columns}
    emails = [members[user_id].email for user_id in saved.recipients if user_id in members]
    return {**values, "user": saved.user, "recipients": emails}

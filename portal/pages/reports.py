"""`/reports`: reports as tables with bars, and as files."""

from datetime import timedelta

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError
from dash_app.reports.builders import GROUPINGS, LABELS, TITLES
from dash_app.reports.models import MAX_FILTER_LENGTH
from dash_app.reports.report import (
    Cell,
    Column,
    FileFormat,
    ReportBy,
    ReportKind,
    Request,
    shown,
)
from dash_app.reports.saved import MAX_PRICE
from portal.context import current_scope
from portal.presenters.reports import (
    DEFAULT_TARGET,
    arranged,
    built,
    report_file,
    report_request,
    table_of,
)
from portal.query_string import chosen, day
from portal.time_zone import local_time

pages = Blueprint("reports", __name__)


@pages.app_template_filter("shown_in")
def shown_in(value: Cell, column: Column) -> str:
    """Return a value of a column as readers see it."""
    return shown(column, value)


@pages.get("/reports")
def index() -> ResponseReturnValue:
    """Show a report."""
    wanted = _request()
    is_operator = current_scope().tenant_id is None
    return render_template(
        "reports/index.html",
        titles=TITLES,
        groupings=[by for by in GROUPINGS[wanted.kind] if is_operator or by is not ReportBy.TENANT],
        labels=LABELS,
        formats=FileFormat,
        last_day=local_time(wanted.period.until - timedelta(microseconds=1)).date(),
        **table_of(wanted),
    )


@pages.get("/reports/export")
def export() -> ResponseReturnValue:
    """Download a report."""
    report = arranged(built(_request()))
    return report_file(report, chosen(FileFormat, "format") or FileFormat.CSV)


def _request() -> Request:
    kind = chosen(ReportKind, "kind") or ReportKind.GPU_TIME
    by = chosen(ReportBy, "by")
    return report_request(
        kind,
        # Another kind of report may have no such grouping.
        by=by if by in GROUPINGS[kind] else None,
        since=day("since"),
        until=day("until", days=1),
        price=_number("price", default=0.0, maximum=MAX_PRICE),
        target=_number("target", default=DEFAULT_TARGET, maximum=100.0),
        appliances=request.args.get("appliances", "").strip()[:MAX_FILTER_LENGTH],
    )


def _number(name: str, *, default: float, maximum: float) -> float:
    text = request.args.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= maximum:
        message = f"{text[:50]!r} is not a number from 0 to {maximum:g}."
        raise InvalidInputError(message, errors={name: [message]})
    return value

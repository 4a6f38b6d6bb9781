"""`/reports`: reports on a period as JSON, CSV, XLSX or PDF."""

from typing import Any

from flask import Response
from marshmallow import Schema, fields, post_load, validate

from dash_app.reports.formats import MEDIA_TYPES
from dash_app.reports.models import MAX_FILTER_LENGTH
from dash_app.reports.report import FileFormat, Report, ReportBy, ReportKind, Unit
from dash_app.reports.saved import MAX_PRICE
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, about, file_response, instant, time_filter
from portal.presenters.gpu_usage import DEFAULT_DAYS
from portal.presenters.reports import (
    DEFAULT_TARGET,
    built,
    report_file,
    report_request,
)

reports = APIBlueprint(
    "Reports", "/reports", "Reports on GPU time, jobs, availability, alerts, capacity and network."
)


class ReportQuery(StrictSchema):
    """The kind, grouping and period of a report."""

    kind = fields.Enum(ReportKind, by_value=True, required=True)
    by = fields.Enum(
        ReportBy,
        by_value=True,
        load_default=None,
        **about("What a row is; the kind's first grouping by default."),
    )
    since = time_filter(f"By default {DEFAULT_DAYS} days before `until`.")
    until = time_filter("Exclusive; by default now.")
    price_per_kilowatt_hour = fields.Float(
        load_default=0.0,
        validate=validate.Range(min=0, max=MAX_PRICE),
        **about("Adds the cost of the energy to `gpu-time`."),
    )
    target_percent = fields.Float(
        load_default=DEFAULT_TARGET,
        validate=validate.Range(min=0, max=100),
        **about("The availability to compare with."),
    )
    appliances = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_FILTER_LENGTH),
        **about(
            "Words that the name, site, GPU model or labels of an appliance have, "
            "such as `rack=b12`; by default every appliance."
        ),
    )

    @post_load
    def _request(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        request = report_request(
            values["kind"],
            by=values["by"],
            since=values["since"],
            until=values["until"],
            price=values["price_per_kilowatt_hour"],
            target=values["target_percent"],
            appliances=values["appliances"],
        )
        return {"request": request, "format": values.get("format")}


class FileQuery(ReportQuery):
    """The kind, grouping and period of a report, and the format of the file."""

    format = fields.Enum(FileFormat, by_value=True, load_default=FileFormat.CSV)


class ColumnSchema(Schema):
    """A column of a report."""

    name = fields.String()
    label = fields.String()
    unit = fields.Enum(Unit, by_value=True)


REPORT_FILE = file_response("The report as a file.", *MEDIA_TYPES.values())
_CELLS = {"description": "One value for each column: text, number, or null if there is none."}


class ReportSchema(Schema):
    """A report: rows of values in the order of its columns."""

    title = fields.String()
    since = instant()
    until = instant()
    made_at = instant()
    columns = fields.List(fields.Nested(ColumnSchema))
    rows = fields.List(fields.List(fields.Raw(allow_none=True, metadata=_CELLS)))
    totals = fields.List(fields.Raw(allow_none=True, metadata=_CELLS))
    notes = fields.List(fields.String())


@reports.operation("GET", query=ReportQuery, answer=ReportSchema)
def show(query: dict[str, Any]) -> dict[str, Any]:
    """Return a report."""
    report: Report = built(query["request"])
    period = report.request.period
    return {
        "title": report.title,
        "since": period.since,
        "until": period.until,
        "made_at": report.made_at,
        "columns": report.columns,
        "rows": report.rows,
        "totals": report.totals,
        "notes": report.notes,
    }


@reports.operation("GET", "/export", query=FileQuery, responses=REPORT_FILE)
def export(query: dict[str, Any]) -> Response:
    """Return a report as a CSV, XLSX or PDF file."""
    return report_file(built(query["request"]), query["format"])

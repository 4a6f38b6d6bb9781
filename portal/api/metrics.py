"""`/metrics`, `/metric-fields` and `/samples`: the catalog of metrics, and samples as files.

An export is streamed, so that its limits on time range and rows are checked before it starts.
`vedette store export` has no such limits.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from core.clock import to_ns
from core.errors import InvalidInputError, NotFoundError
from core.quantities import unit_of
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    file_response,
    page_of,
    time_filter,
    whole_list,
)
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from timeseries.metric_catalog import CatalogMetric, list_metrics, search_metrics
from timeseries.migration.export import ExportFormat, export
from timeseries.store import APPLIANCE_TAG, ScanQuery, Store

metrics = APIBlueprint("Metrics", "/metrics", "The metric catalog.")


MAX_SEARCH_LENGTH = 100


class MeasurementSchema(Schema):
    """A measurement."""

    name = fields.String()


class FieldSchema(Schema):
    """A field with its unit."""

    name = fields.String()
    type = fields.String()
    unit = fields.String()


class MeasurementDetailSchema(MeasurementSchema):
    """A measurement with its fields and tags."""

    # `fields` is reserved by marshmallow.
    field_list = fields.List(fields.Nested(FieldSchema), data_key="fields", attribute="fields")
    tags = fields.List(fields.String())


@metrics.operation("GET", answer=page_of(MeasurementSchema))
def list_measurements() -> dict[str, Any]:
    """List the measurements that your tenant has samples of."""
    names = portal().store.measurements(tenants=current_scope().tenants)
    return whole_list([{"name": name} for name in names])


@metrics.operation("GET", "/<measurement>", answer=MeasurementDetailSchema)
def show_measurement(measurement: str) -> dict[str, Any]:
    """Return the fields, units and tags of a measurement in your tenant."""
    store, tenants = portal().store, current_scope().tenants
    field_rows = [
        {"name": name, "type": kind, "unit": unit_of(name).symbol}
        for name, kind in store.fields(measurement, tenants=tenants).items()
    ]
    if not field_rows:
        raise NotFoundError.of("measurement", measurement)
    return {
        "name": measurement,
        "fields": field_rows,
        "tags": store.tags(measurement, tenants=tenants),
    }


class TagValueSchema(Schema):
    """A value of a tag."""

    value = fields.String()
    name = fields.String(**about("Of an appliance its name, else the value."))


class SearchQuery(PageQuery):
    """The text to search for."""

    search = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_SEARCH_LENGTH),
        **about("Words in name, unit or description; all must occur."),
    )


class CatalogMetricSchema(Schema):
    """A metric: a field of a measurement, with numbers."""

    name = fields.String(**about("`measurement.field`, as in expressions."))
    measurement = fields.String()
    field = fields.String()
    unit = fields.String()
    description = fields.String()
    tags = fields.List(fields.String())
    has_samples = fields.Boolean()


@metrics.operation(
    "GET",
    "/<measurement>/tags/<tag>",
    query=SearchQuery,
    answer=page_of(TagValueSchema),
    has_etag=False,
)
def list_tag_values(query: dict[str, Any], measurement: str, tag: str) -> dict[str, Any]:
    """List the values of a tag in the samples of your tenant."""
    store, scope = portal().store, current_scope()
    if tag not in store.tags(measurement, tenants=scope.tenants):
        raise NotFoundError(f"The measurement {measurement!r} has no tag {tag!r}.")
    values = store.tag_values(measurement, tag, tenants=scope.tenants)
    names: Mapping[str, str] = {}
    if tag == APPLIANCE_TAG:
        with database() as session:
            names = appliance_names(session, scope.tenants)
    rows = [{"value": value, "name": names.get(value, value)} for value in values]
    wanted = query["search"].lower()
    return _page([row for row in rows if wanted in row["name"].lower()], query)


metric_fields = APIBlueprint("Metric fields", "/metric-fields", "Search of metrics.")


@metric_fields.operation("GET", query=SearchQuery, answer=page_of(CatalogMetricSchema))
def search(query: dict[str, Any]) -> dict[str, Any]:
    """Search the metrics that plugins declare, and all others that your tenant has samples of."""
    store, tenants = portal().store, current_scope().tenants
    catalog: list[CatalogMetric] = portal().minute.get(
        ("metric catalog", tenants), lambda: list_metrics(store, tenants=tenants)
    )
    return _page(search_metrics(catalog, query["search"]), query)


def _page(rows: Sequence[object], query: dict[str, Any]) -> dict[str, Any]:
    number, size = query["page"], query["page_size"]
    shown = list(rows[(number - 1) * size : number * size])
    return {"items": shown, "total": len(rows), "page": number, "page_size": size}


MAX_SPAN = timedelta(days=31)
MAX_ROWS = 5_000_000
_DEFAULT_SPAN = timedelta(hours=1)
_MAX_NAME_LENGTH = 80
_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

samples = APIBlueprint("Samples", "/samples", "Exports of samples.")


class ExportQuery(StrictSchema):
    """Samples to export, and the file format."""

    measurement = fields.String(required=True, validate=validate.Length(min=1))
    format = fields.Enum(
        ExportFormat,
        by_value=True,
        load_default=ExportFormat.CSV,
        **about("CSV has a header and RFC 3339 times; Parquet is typed."),
    )
    since = time_filter("Start time, inclusive; by default an hour before `until`.")
    until = time_filter("End time, exclusive; by default now.")


_ROWS = (
    "One row per point with time, tags and fields. "
    f"At most {MAX_SPAN.days} days and {MAX_ROWS:,} rows per request."
)


@samples.operation(
    "GET",
    "/export",
    query=ExportQuery,
    responses=file_response(_ROWS, "text/csv", "application/vnd.apache.parquet"),
)
def export_samples(query: dict[str, Any]) -> Response:
    """Export the samples of a measurement as a CSV or Parquet file."""
    scope = current_scope()
    scope.require(Permission.VIEW)
    store, measurement = portal().store, query["measurement"]
    since, until = _span(query["since"], query["until"])
    if not store.fields(measurement, tenants=scope.tenants):
        raise NotFoundError.of("measurement", measurement)
    scan = ScanQuery(
        measurement=measurement, start_ns=to_ns(since), end_ns=to_ns(until), tenants=scope.tenants
    )
    _check_rows(store, scan)
    wanted: ExportFormat = query["format"]
    return stream_file(
        (piece.data for piece in export(store, scan, wanted)),
        media_type=wanted.media_type,
        file_name=file_name(measurement, since, until, wanted),
    )


def file_name(measurement: str, since: datetime, until: datetime, file_format: ExportFormat) -> str:
    """Return a portable file name from the measurement and the time range."""
    stem = _UNSAFE_IN_NAMES.sub("_", measurement)[:_MAX_NAME_LENGTH].strip("._-") or "samples"
    return f"{stem}_{since:%Y%m%dT%H%M%SZ}_{until:%Y%m%dT%H%M%SZ}.{file_format}"


def _span(since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    try:
        until = (until or now()).astimezone(UTC)
        since = (since or until - _DEFAULT_SPAN).astimezone(UTC)
    except OverflowError as error:
        raise InvalidInputError(
            "The time range is outside the years 1 to 9999.",
            errors={"since": ["must be within the years 1 to 9999"]},
        ) from error
    if since >= until:
        raise InvalidInputError(
            f"'since' ({since.isoformat()}) must be before 'until' ({until.isoformat()}).",
            errors={"since": ["must be before until"]},
        )
    if until - since > MAX_SPAN:
        raise InvalidInputError(
            f"The time range of {(until - since).days} days exceeds {MAX_SPAN.days} days. "
            "Export shorter ranges one after the other.",
            errors={"until": [f"must be at most {MAX_SPAN.days} days after since"]},
        )
    return since, until


def _check_rows(store: Store, scan: ScanQuery) -> None:
    extent = store.extent(scan)
    if extent is not None and extent.points > MAX_ROWS:
        points = f"{extent.points:,} points" if extent.is_exact else f">= {extent.points:,} points"
        raise InvalidInputError(
            f"The time range has {points}, and one request exports up to {MAX_ROWS:,}. "
            "Export shorter ranges, or run `vedette store export` on the store's host.",
            errors={"until": ["the time range has too many points"]},
        )

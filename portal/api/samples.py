"""`/samples/export`: the samples of a measurement as a file, while the server runs.

The answer is streamed, so what can be refused is refused before it begins: a span that is too
long, and more rows than one request may take. `vedette store export` has no such limits.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Response
from marshmallow import fields, validate

from core.clock import to_ns
from core.errors import InvalidInputError, NotFoundError
from portal.api.blueprint import resource
from portal.api.schemas import StrictSchema
from portal.context import current_scope, now, portal
from tenants.permissions import Permission
from timeseries.moving.export import ExportFormat, export
from timeseries.store import ScanQuery, Store

MAX_SPAN = timedelta(days=31)
MAX_ROWS = 5_000_000
_DEFAULT_SPAN = timedelta(hours=1)
_MAX_NAME_LENGTH = 80
_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

samples = resource("Samples", "/samples", "What was measured, as files.")


class ExportQuery(StrictSchema):
    """Which samples, and in which form."""

    measurement = fields.String(required=True, validate=validate.Length(min=1))
    format = fields.Enum(
        ExportFormat,
        by_value=True,
        load_default=ExportFormat.CSV,
        metadata={"description": "CSV has a header and RFC 3339 times; Parquet is typed."},
    )
    since = fields.AwareDateTime(
        format="iso",
        default_timezone=UTC,
        load_default=None,
        metadata={"description": "First instant; an hour before `until` when left out."},
    )
    until = fields.AwareDateTime(
        format="iso",
        default_timezone=UTC,
        load_default=None,
        metadata={"description": "Instant to stop before; now when left out."},
    )


_FILE = {"schema": {"type": "string", "format": "binary"}}
_ANSWER = {
    "description": (
        "One row for each point: its time, its tags, its fields. "
        f"At most {MAX_SPAN.days} days and {MAX_ROWS:,} rows a request."
    ),
    "content": {
        "text/csv": _FILE,
        "application/vnd.apache.parquet": _FILE,
    },
}


@samples.operation("GET", "/export", query=ExportQuery)
@samples.doc(responses={"200": _ANSWER})  # type: ignore[untyped-decorator] # flask-smorest
def export_samples(query: dict[str, Any]) -> Response:
    """Return the samples of a measurement as a CSV or Parquet file."""
    scope = current_scope()
    scope.require(Permission.VIEW)
    store, measurement = portal().store, query["measurement"]
    since, until = _span(query["since"], query["until"])
    if not store.fields(measurement, tenants=scope.tenants):
        raise NotFoundError.of("measurement", measurement)
    scan = ScanQuery(
        measurement=measurement,
        start_ns=to_ns(since),
        end_ns=to_ns(until),
        tenants=scope.tenants,
    )
    _check_rows(store, scan)
    wanted: ExportFormat = query["format"]
    pieces = export(store, scan, wanted)
    response = Response((piece.data for piece in pieces), content_type=wanted.media_type)
    name = file_name(measurement, since, until, wanted)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def file_name(measurement: str, since: datetime, until: datetime, file_format: ExportFormat) -> str:
    """Return a name that any system takes: what was measured, from when to when."""
    what = _UNSAFE_IN_NAMES.sub("_", measurement)[:_MAX_NAME_LENGTH].strip("._-") or "samples"
    return f"{what}_{since:%Y%m%dT%H%M%SZ}_{until:%Y%m%dT%H%M%SZ}.{file_format}"


def _span(since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    try:
        until = (until or now()).astimezone(UTC)
        since = (since or until - _DEFAULT_SPAN).astimezone(UTC)
    except OverflowError as error:
        raise InvalidInputError(
            "The span reaches beyond the years 1 to 9999.",
            errors={"since": ["must be a time that can be"]},
        ) from error
    if since >= until:
        raise InvalidInputError(
            f"since {since.isoformat()} is not before until {until.isoformat()}.",
            errors={"since": ["must be before until"]},
        )
    if until - since > MAX_SPAN:
        raise InvalidInputError(
            f"The span of {(until - since).days} days is longer than {MAX_SPAN.days}; "
            "ask for shorter ones, one after the other.",
            errors={"until": [f"must be at most {MAX_SPAN.days} days after since"]},
        )
    return since, until


def _check_rows(store: Store, scan: ScanQuery) -> None:
    extent = store.extent(scan)
    if extent is not None and extent.points > MAX_ROWS:
        points = f"{extent.points:,} points" if extent.is_exact else f">= {extent.points:,} points"
        raise InvalidInputError(
            f"The span holds {points}, and one request takes {MAX_ROWS:,}; "
            "ask for shorter spans, or run `vedette store export` where the store is.",
            errors={"until": ["the span holds too many points"]},
        )

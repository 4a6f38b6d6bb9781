"""`/query`: aggregates of samples as JSON, CSV or Arrow, for scripts and notebooks."""

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from flask import Response, request
from marshmallow import Schema, ValidationError, fields, validate
from webargs.fields import DelimitedList

from core.clock import NS_PER_SECOND, from_ns, to_ns
from core.errors import OverloadedError
from core.quantities import parse_duration
from portal.api.blueprint import PREFIX, APIBlueprint
from portal.api.schemas import PageQuery, about, file_response, instant
from portal.context import current_scope, now, portal
from tenants.permissions import Permission
from timeseries.sample_query import (
    MAX_GROUPS,
    MAX_SPAN_DAYS,
    MAX_VALUES,
    MAX_WINDOWS,
    Group,
    query_groups,
    raise_errors,
    rfc3339,
    to_arrow,
    to_csv,
)
from timeseries.store import Aggregate, RangeQuery

DURATION = "[1-9][0-9]{0,5}[smhd]"
_RFC3339 = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)
_TIME = f"^(now|-{DURATION}|{_RFC3339})$"
_STEP = f"^{DURATION}$"
_FILTER = r"^[^=]+=[\s\S]*$"
_DEFAULT_SINCE = "-1h"
_NOW = "now"

query = APIBlueprint("Query", "/query", "Aggregates of samples.")


class QueryFormat(StrEnum):
    """The format of the response."""

    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


_ARROW_TYPE = "application/vnd.apache.arrow.stream"
_MEDIA_TYPES = {
    "application/json": QueryFormat.JSON,
    "text/csv": QueryFormat.CSV,
    _ARROW_TYPE: QueryFormat.ARROW,
}


def _matching(pattern: str, hint: str, **options: Any) -> fields.String:  # noqa: ANN401 - marshmallow's options
    """Return a field for text that matches a pattern as a whole; `hint` shows how to write it."""

    def check(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise ValidationError(f"{text!r} is invalid. Write it like {hint}.")

    metadata = {"pattern": pattern, **options.pop("metadata", {})}
    return fields.String(validate=check, metadata=metadata, **options)


def _time(description: str, default: str) -> fields.String:
    return _matching(
        _TIME,
        "2026-03-01T12:00:00Z (with %2B for a plus sign), -6h, -7d or now",
        load_default=default,
        **about(description, example=default),
    )


def _names(description: str, example: str, **options: Any) -> DelimitedList:  # noqa: ANN401 - marshmallow's options
    name = fields.String(validate=validate.Length(min=1))
    return DelimitedList(name, **about(description, example=example.split(",")), **options)


class SampleQuerySchema(PageQuery):
    """Which samples to aggregate, and how."""

    measurement = fields.String(
        required=True, validate=validate.Length(min=1), metadata={"example": "gpu"}
    )
    # `fields` is reserved by marshmallow.
    field_names = _names(
        "Comma-separated fields.",
        "power_watts,temperature_celsius",
        required=True,
        data_key="fields",
        validate=validate.Length(min=1),
    )
    aggregate = fields.Enum(
        Aggregate,
        by_value=True,
        load_default=Aggregate.AVG,
        **about("Reduces all samples of a group in a window."),
    )
    step = _matching(
        _STEP,
        "30s, 5m, 1h or 1d",
        load_default=None,
        **about(
            "Width of the windows, which are aligned to 1970-01-01; "
            "by default the range is one window.",
            example="5m",
        ),
    )
    group_by = _names(
        "Comma-separated tags; each combination of their values is a group.",
        "appliance,gpu",
        load_default=list,
    )
    filter = fields.List(
        _matching(_FILTER, "gpu=0"),
        load_default=list,
        **about(
            "`tag=value`, repeatable: one of the values of each tag. "
            "An empty value selects samples without the tag.",
            example=["gpu=0", "gpu=1"],
        ),
    )
    since = _time("Start, inclusive: RFC 3339, or relative to now.", _DEFAULT_SINCE)
    until = _time("End, exclusive: RFC 3339, or relative to now.", _NOW)
    format = fields.Enum(
        QueryFormat,
        by_value=True,
        load_default=None,
        **about("By default as the header `Accept` prefers, else JSON."),
    )


class GroupSchema(Schema):
    """The values of one group: parallel lists, with null where a window has none."""

    tags = fields.Dict(keys=fields.String(), values=fields.String())
    times = fields.List(fields.String(), **about("Starts of the windows."))
    values = fields.Dict(
        keys=fields.String(),
        values=fields.List(fields.Float(allow_none=True)),
        **about("Field to its values."),
    )


class QueryAnswerSchema(Schema):
    """A page of groups."""

    measurement = fields.String()
    aggregate = fields.Enum(Aggregate, by_value=True)
    since = instant()
    until = instant()
    step_seconds = fields.Float(allow_none=True)
    items = fields.List(fields.Nested(GroupSchema))
    total = fields.Integer(**about("Groups on all pages."))
    page = fields.Integer()
    page_size = fields.Integer()
    next = fields.String(
        allow_none=True, **about("Address of the next page, with absolute times; null on the last.")
    )


_LIMITS = (
    f"At most {MAX_SPAN_DAYS} days, {MAX_WINDOWS:,} windows and {MAX_GROUPS:,} "
    f"groups per query, and {MAX_VALUES:,} values per page. CSV and Arrow have a row for each "
    "group and window. The header `Link` has the address of the next page."
)


@query.operation(
    "GET",
    query=SampleQuerySchema,
    answer=QueryAnswerSchema,
    responses=file_response(_LIMITS, "text/csv", _ARROW_TYPE),
)
def query_samples(query: dict[str, Any]) -> Any:  # noqa: ANN401 - a response, or its body and headers
    """Aggregate samples by time window and by group."""
    scope = current_scope()
    scope.require(Permission.VIEW)
    range_query = _range_query(query, tenants=scope.tenants)
    key = scope.tenant_id or ""
    with portal().queries.running(key) as is_admitted:
        if not is_admitted:
            raise OverloadedError(
                f"The tenant is running {portal().queries.max_running} queries already. Send this "
                "one again when one of them has finished.",
                retry_after_seconds=1,
            )
        groups, total = query_groups(
            portal().store, range_query, page=query["page"], page_size=query["page_size"]
        )
    is_last = query["page"] * query["page_size"] >= total
    next_page = None if is_last else _next_page(query, range_query)
    headers = {} if next_page is None else {"Link": f'<{next_page}>; rel="next"'}
    if _format(query) is QueryFormat.CSV:
        return Response(
            to_csv(range_query, groups), content_type="text/csv; charset=utf-8", headers=headers
        )
    if _format(query) is QueryFormat.ARROW:
        table = to_arrow(range_query, groups)
        return Response(table, content_type=_ARROW_TYPE, headers=headers)
    return _body(query, range_query, groups) | {"total": total, "next": next_page}, headers


def _body(query: dict[str, Any], range_query: RangeQuery, groups: list[Group]) -> dict[str, Any]:
    return {
        "measurement": range_query.measurement,
        "aggregate": range_query.aggregate,
        "since": from_ns(range_query.start_ns),
        "until": from_ns(range_query.end_ns),
        "step_seconds": None
        if range_query.step_ns is None
        else range_query.step_ns / NS_PER_SECOND,
        "items": [
            {
                "tags": group.tags,
                "times": [rfc3339(at) for at in group.times_ns],
                "values": group.values,
            }
            for group in groups
        ],
        "page": query["page"],
        "page_size": query["page_size"],
    }


def _range_query(query: dict[str, Any], *, tenants: tuple[str, ...] | None) -> RangeQuery:
    filters: dict[str, tuple[str, ...]] = {}
    for text in query["filter"]:
        tag, _, value = text.partition("=")
        filters[tag] = (*filters.get(tag, ()), value)
    errors, times_ns, current = {}, {}, now()
    for name in ("since", "until"):
        try:
            times_ns[name] = to_ns(_instant(query[name], current))
        except (ValueError, OverflowError) as error:
            errors[name] = [f"{query[name]!r} is not a time: {error}."]
    raise_errors(errors)
    step = query["step"]
    return RangeQuery(
        measurement=query["measurement"],
        fields=tuple(dict.fromkeys(query["field_names"])),
        start_ns=times_ns["since"],
        end_ns=times_ns["until"],
        aggregate=query["aggregate"],
        step_ns=None if step is None else round(parse_duration(step)) * NS_PER_SECOND,
        tenants=tenants,
        filters=filters,
        group_by=tuple(dict.fromkeys(query["group_by"])),
    )


def _instant(text: str, current: datetime) -> datetime:
    if text == _NOW:
        return current
    if text.startswith("-"):
        return current - timedelta(seconds=parse_duration(text[1:]))
    return datetime.fromisoformat(text)


def _format(query: dict[str, Any]) -> QueryFormat:
    if query["format"] is not None:
        return QueryFormat(query["format"])
    wanted = request.accept_mimetypes.best_match(list(_MEDIA_TYPES))
    return _MEDIA_TYPES.get(wanted or "", QueryFormat.JSON)


def _next_page(query: dict[str, Any], range_query: RangeQuery) -> str:
    """Return the address of the next page, whose times don't move with the clock."""
    changed = {
        "since": rfc3339(range_query.start_ns),
        "until": rfc3339(range_query.end_ns),
        "page": str(query["page"] + 1),
    }
    same = [pair for pair in request.args.items(multi=True) if pair[0] not in changed]
    return f"{PREFIX}/query?{urlencode([*same, *changed.items()])}"

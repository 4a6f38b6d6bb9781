"""`/logs`: logs of jobs and appliances and the portal's own events, in one search."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate
from webargs.fields import DelimitedList

from core.clock import from_ns
from logs.context import MAX_AROUND, Place
from logs.lines import Source
from logs.query import MAX_LIMIT, MAX_RANK, Cursor, LogQuery
from logs.search import MAX_BUCKETS
from logs.terms import MAX_LENGTH
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, about, file_response, instant, time_filter
from portal.context import now
from portal.presenters.logs import (
    BUCKETS,
    LogFormat,
    log_context,
    log_file,
    log_histogram,
    search_logs,
    shown_lines,
)
from protocol.lines import LogLevel

logs = APIBlueprint("Logs", "/logs", "Logs of jobs and appliances, and the portal's events.")

DEFAULT_SPAN = timedelta(hours=1)
_MAX_ID_LENGTH = 36
_SEARCH = (
    'Words, a "phrase", the beginning of a word with `*`, and RE2 regular expressions between '
    "slashes. A line has all of them, and none of those after a minus."
)


def _ident(description: str) -> fields.String:
    return fields.String(
        load_default="", validate=validate.Length(max=_MAX_ID_LENGTH), **about(description)
    )


class LogFilterSchema(StrictSchema):
    """Which lines to find."""

    since = time_filter("Start time, inclusive; an hour before `until` by default.")
    until = time_filter("End time, exclusive; now by default.")
    search = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_LENGTH),
        **about(_SEARCH, example='nccl "timed out" -retry'),
    )
    source = DelimitedList(
        fields.Enum(Source, by_value=True),
        load_default=list,
        **about("Comma-separated sources; all that you may read by default."),
    )
    level = fields.Enum(
        LogLevel, by_value=True, load_default=LogLevel.DEBUG, **about("The least level.")
    )
    appliance_id = _ident("Id of the appliance.")
    job_id = _ident("Id of the job; of the first member of a gang for those of all.")
    rank = fields.Integer(
        load_default=None,
        validate=validate.Range(min=0, max=MAX_RANK),
        **about("Rank of the only member of the gang, of which the job is first."),
    )
    unit = fields.String(
        load_default="",
        validate=validate.Length(max=100),
        **about("systemd unit, `kernel`, `stdout` or `stderr`."),
    )


class LogSearchSchema(LogFilterSchema):
    """Which lines to find, and the page of them."""

    order = fields.String(load_default="newest", validate=validate.OneOf(["newest", "oldest"]))
    page_size = fields.Integer(load_default=100, validate=validate.Range(min=1, max=MAX_LIMIT))
    after = fields.String(
        load_default="",
        validate=validate.Length(max=100),
        **about("The `next` of the page before."),
    )


class LogHistogramQuerySchema(LogFilterSchema):
    """Which lines to count, and in how many parts of the time range."""

    buckets = fields.Integer(load_default=BUCKETS, validate=validate.Range(min=1, max=MAX_BUCKETS))


class LogContextQuerySchema(StrictSchema):
    """A line as the search returned it."""

    source = fields.Enum(Source, by_value=True, required=True)
    at_ns = fields.Integer(
        required=True, validate=validate.Range(min=0, max=2**63 - 1), metadata={"example": "0"}
    )
    sequence = fields.Integer(load_default=0, validate=validate.Range(min=0, max=2**62))
    appliance_id = _ident("`appliance_id` of the line.")
    job_id = _ident("`job_id` of the line.")
    count = fields.Integer(
        load_default=5,
        validate=validate.Range(min=1, max=MAX_AROUND),
        **about("How many lines before, and how many after."),
    )


class LogExportSchema(LogFilterSchema):
    """Which lines to export, and as what."""

    format = fields.Enum(LogFormat, by_value=True, load_default=LogFormat.NDJSON)


class FoundLineSchema(Schema):
    """A line."""

    id = fields.String(**about("The same in every search."))
    at = instant()
    at_ns = fields.String(**about("`at` in nanoseconds since 1970."))
    sequence = fields.Integer(**about("Orders lines of the same moment."))
    source = fields.Enum(Source, by_value=True)
    level = fields.Enum(LogLevel, by_value=True)
    appliance_id = fields.String(allow_none=True)
    appliance_name = fields.String()
    job_id = fields.String(allow_none=True)
    job_name = fields.String()
    attempt = fields.Integer(**about("Attempt of the job; 0 for other lines."))
    unit = fields.String(**about("systemd unit, `kernel`, or stream of the job."))
    event = fields.String(**about("What it reports, such as `xid`, `oom_kill` or `disk_error`."))
    subject = fields.String(**about("PCI address of the GPU, process, interface or disk."))
    text = fields.String()


class LogPageSchema(Schema):
    """A page of lines."""

    items = fields.List(fields.Nested(FoundLineSchema))
    next = fields.String(allow_none=True, **about("Cursor of the next page; null after the last."))
    is_complete = fields.Boolean(
        **about(
            "Whether the range was searched up to the last line; else the time was "
            "up, and `next` goes on from there."
        )
    )
    problems = fields.List(fields.String(), **about("Files of logs that can't be read."))


class LogCountsSchema(Schema):
    """Counts of one level."""

    level = fields.Enum(LogLevel, by_value=True)
    counts = fields.List(fields.Integer(), **about("Of each bucket."))


class LogHistogramSchema(Schema):
    """How many lines match over time."""

    start = instant()
    step_seconds = fields.Float()
    levels = fields.List(fields.Nested(LogCountsSchema))
    is_complete = fields.Boolean(**about("Whether all lines were counted before the time was up."))


class LogContextSchema(Schema):
    """Lines around a line, oldest first."""

    items = fields.List(fields.Nested(FoundLineSchema))


@logs.operation("GET", query=LogSearchSchema, answer=LogPageSchema)
def search(query: dict[str, Any]) -> dict[str, Any]:
    """Search logs and events, newest first by default."""
    page = search_logs(
        replace(
            _query(query),
            is_oldest_first=query["order"] == "oldest",
            limit=query["page_size"],
            cursor=Cursor.parse(query["after"]) if query["after"] else None,
        )
    )
    return {
        "items": shown_lines(page.lines),
        "next": page.next,
        "is_complete": page.is_complete,
        "problems": page.problems,
    }


@logs.operation("GET", "/histogram", query=LogHistogramQuerySchema, answer=LogHistogramSchema)
def histogram(query: dict[str, Any]) -> dict[str, Any]:
    """Count matching lines over time, by level."""
    counted = log_histogram(_query(query), buckets=query["buckets"])
    return {
        "start": from_ns(counted.start_ns),
        "step_seconds": counted.step_ns / 1e9,
        "levels": [{"level": level, "counts": each} for level, each in counted.counts.items()],
        "is_complete": counted.is_complete,
    }


@logs.operation("GET", "/context", query=LogContextQuerySchema, answer=LogContextSchema)
def context(query: dict[str, Any]) -> dict[str, Any]:
    """Return the lines around a line, of the same job or appliance."""
    count = query.pop("count")
    return {"items": shown_lines(log_context(Place(**query), count=count))}


@logs.operation(
    "GET",
    "/export",
    query=LogExportSchema,
    responses=file_response("All lines, newest first.", "application/x-ndjson", "text/plain"),
)
def export(query: dict[str, Any]) -> Response:
    """Download all matching lines as JSON lines or text, newest first."""
    return log_file(_query(query), query["format"])


def _query(query: dict[str, Any]) -> LogQuery:
    until = query["until"] or now()
    since = query["since"] or until - DEFAULT_SPAN
    return replace(
        LogQuery.between(since, until, query["search"]),
        sources=frozenset(query["source"] or Source),
        minimum_level=query["level"],
        appliance_id=query["appliance_id"],
        job_id=query["job_id"],
        rank=query["rank"],
        unit=query["unit"],
    )

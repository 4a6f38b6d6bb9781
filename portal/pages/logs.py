"""`/logs`: the search over logs of jobs and appliances and the portal's events."""

from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from core.clock import from_ns
from core.errors import InvalidInputError, NotFoundError
from jobqueue.jobs.gangs import is_first
from jobqueue.models import Job
from jobqueue.queue.service import get_job
from logs.context import Place
from logs.lines import Source
from logs.query import Cursor, LogQuery
from logs.search import LogLines
from portal.context import current_scope, database, now
from portal.presenters.logs import log_context, search_logs, shown_lines
from portal.query_string import chosen, instant
from protocol.lines import LEVELS, LogLevel
from tenants.fleet.appliances import get_appliance
from tenants.models import Appliance
from tenants.permissions import Permission

pages = Blueprint("logs", __name__)

PAGE_LINES = 200
AROUND = 8
ALL_RANKS = "all"
_MAX_TEXT_LENGTH = 500
_MAX_DIGITS = 19


class Range(StrEnum):
    """A time range until now, as dashboards have them."""

    QUARTER = "15m"
    HOUR = "1h"
    HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"
    QUARTER_YEAR = "90d"


SPANS = {
    Range.QUARTER: timedelta(minutes=15),
    Range.HOUR: timedelta(hours=1),
    Range.HOURS: timedelta(hours=6),
    Range.DAY: timedelta(days=1),
    Range.WEEK: timedelta(days=7),
    Range.MONTH: timedelta(days=30),
    Range.QUARTER_YEAR: timedelta(days=90),
}
SOURCES = {
    Source.JOB: "Jobs",
    Source.APPLIANCE: "Appliances",
    Source.EVENT: "Events",
    Source.ALERT: "Alerts",
    Source.AUDIT: "Audit log",
}


@pages.get("/logs")
def index() -> ResponseReturnValue:
    """Show the lines that match, newest first, and how many there are over time."""
    search, errors = _text("search"), dict[str, list[str]]()
    page = LogLines(lines=(), next=None, is_complete=True, problems=())
    span = chosen(Range, "range")
    since, until, cursor = instant("since"), instant("until"), _text("after")
    end_at = until or now()
    start_at = since or end_at - SPANS[span or Range.HOUR]
    filters = _filters()
    appliance, job = _subject(filters)
    filters["rank"] = _rank(job)
    try:
        query = replace(
            LogQuery.between(start_at, end_at, search),
            limit=PAGE_LINES,
            cursor=Cursor.parse(cursor) if cursor else None,
            **filters,
        )
        page = search_logs(query)
    except InvalidInputError as error:
        errors = error.errors
    return render_template(
        "logs/index.html",
        page=page,
        lines=shown_lines(page.lines),
        search=search,
        errors=[text for texts in errors.values() for text in texts],
        since=since,
        until=until,
        start_at=start_at,
        end_at=end_at,
        has_date=end_at - start_at > timedelta(hours=12),
        range=span or Range.HOUR,
        ranges=list(Range),
        sources=_sources(),
        levels=LEVELS,
        level=filters["minimum_level"],
        unit=filters["unit"],
        appliance=appliance,
        job=job,
        ranks=range(job.nodes) if job is not None and is_first(job) else (),
        rank=filters["rank"],
        filters={name: request.args.get(name, "") for name in ("appliance_id", "job_id")},
        api_query=_api_query(start_at.isoformat(), end_at.isoformat(), filters["rank"]),
        reached_at=_reached(page),
    )


@pages.get("/logs/context")
def context() -> ResponseReturnValue:
    """Show the lines around a line, for the page of the search."""
    source, at = chosen(Source, "source"), _text("at_ns")
    sequence = _text("sequence") or "0"
    is_number = at.isdecimal() and sequence.isdecimal()
    if source is None or not is_number or max(len(at), len(sequence)) > _MAX_DIGITS:
        raise NotFoundError("There is no such line.")
    place = Place(
        source=source,
        at_ns=min(int(at), 2**62),
        sequence=min(int(sequence), 2**62),
        appliance_id=_text("appliance_id"),
        job_id=_text("job_id"),
    )
    lines = shown_lines(log_context(place, count=AROUND))
    return render_template("logs/context.html", lines=lines, place=place)


def _text(name: str) -> str:
    return request.args.get(name, "").strip()[:_MAX_TEXT_LENGTH]


def _sources() -> dict[Source, str]:
    can_audit = current_scope().allows(Permission.VIEW_AUDIT)
    return {key: name for key, name in SOURCES.items() if can_audit or key is not Source.AUDIT}


def _filters() -> dict[str, Any]:
    source = chosen(Source, "source")
    return {
        "sources": frozenset({source} if source else Source),
        "minimum_level": chosen(LogLevel, "level") or LogLevel.DEBUG,
        "appliance_id": _text("appliance_id"),
        "job_id": _text("job_id"),
        "unit": _text("unit"),
    }


def _subject(filters: dict[str, Any]) -> tuple[Appliance | None, Job | None]:
    """Return the appliance and the job whose lines alone are shown.

    Raises:
        NotFoundError: there is no such appliance or job.
    """
    with database() as session:
        scope = current_scope()
        appliance_id, job_id = filters["appliance_id"], filters["job_id"]
        return (
            get_appliance(session, scope, appliance_id) if appliance_id else None,
            get_job(session, scope, job_id) if job_id else None,
        )


def _rank(job: Job | None) -> int | None:
    """Return the member whose lines are shown: the first of a gang, unless another is chosen."""
    if job is None or not is_first(job):
        return None
    text = _text("rank")
    if text == ALL_RANKS:
        return None
    return min(int(text), job.nodes - 1) if text.isdecimal() and len(text) < _MAX_DIGITS else 0


def _api_query(since: str, until: str, rank: int | None) -> dict[str, str]:
    """Return the same search as parameters of the REST API."""
    names = ("search", "source", "level", "appliance_id", "job_id", "unit")
    query = {name: _text(name) for name in names if _text(name)}
    of_member = {} if rank is None else {"rank": str(rank)}
    return {**query, **of_member, "since": since, "until": until}


def _reached(page: LogLines) -> Any:  # noqa: ANN401 - an instant, or None
    """Return the time up to which a search that ran out of time has read everything."""
    if page.is_complete or page.next is None:
        return None
    return from_ns(Cursor.parse(page.next).at_ns)

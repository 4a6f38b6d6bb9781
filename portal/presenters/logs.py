"""Lines of logs as pages and API show them, and as a file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from flask import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import from_ns
from core.errors import OverloadedError
from jobqueue.models import Job
from logs.context import Place, lines_around
from logs.query import MAX_LIMIT, Cursor, LogQuery
from logs.search import FoundLine, Histogram, LogLines, count_lines, search
from logs.sources import LogSources
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from tenants.models import Appliance

MAX_EXPORTED_LINES = 1_000_000
BUCKETS = 60
_RETRY_SECONDS = 2
_WAIT_SECONDS = 2.0


class LogFormat(StrEnum):
    """The format of an export."""

    NDJSON = "ndjson"
    TEXT = "txt"


_MEDIA_TYPES = {LogFormat.NDJSON: "application/x-ndjson", LogFormat.TEXT: "text/plain"}


def search_logs(query: LogQuery) -> LogLines:
    """Search in the current scope.

    Raises:
        OverloadedError: the tenant has as many searches in progress as it may.
    """
    with _turn():
        return search(query, _sources().blocks)


def log_histogram(query: LogQuery, *, buckets: int = BUCKETS) -> Histogram:
    """Count lines over time in the current scope."""
    with _turn():
        return count_lines(query, _sources().blocks, buckets=buckets)


def log_context(place: Place, *, count: int) -> Sequence[FoundLine]:
    """Return the lines around a line in the current scope."""
    with _turn():
        return lines_around(place, _sources().blocks, count=count)


def shown_lines(lines: Sequence[FoundLine]) -> list[dict[str, Any]]:
    """Return lines with the names of their appliances and jobs."""
    with database() as session:
        appliances = _names_of(session, Appliance, {line.appliance for line in lines})
        jobs = _names_of(session, Job, {line.job for line in lines})
    return [_shown(line, appliances, jobs) for line in lines]


def log_file(query: LogQuery, wanted: LogFormat) -> Response:
    """Stream all lines of a query, up to `MAX_EXPORTED_LINES`."""
    sources = _sources()
    return stream_file(
        _pieces(query, sources, wanted),
        media_type=_MEDIA_TYPES[wanted],
        file_name=f"logs_{now():%Y%m%dT%H%M%SZ}.{wanted.value}",
    )


def _pieces(query: LogQuery, sources: LogSources, wanted: LogFormat) -> Iterator[str]:
    names = _Names()
    exported, cursor = 0, query.cursor
    while exported < MAX_EXPORTED_LINES:
        page = search(replace(query, limit=MAX_LIMIT, cursor=cursor), sources.blocks)
        yield "".join(
            _as_json(line, names) if wanted is LogFormat.NDJSON else _as_text(line, names)
            for line in page.lines
        )
        exported += len(page.lines)
        if page.next is None:
            return
        cursor = Cursor.parse(page.next)


class _Names:
    """Names of appliances and jobs, read once each."""

    def __init__(self) -> None:
        self._sessions = portal().sessions
        self._appliances: dict[str, str] = {}
        self._jobs: dict[str, str] = {}

    def shown(self, line: FoundLine) -> dict[str, Any]:
        """Return a line with the names."""
        is_new_appliance = line.appliance and line.appliance not in self._appliances
        if is_new_appliance or (line.job and line.job not in self._jobs):
            with self._sessions.begin() as session:
                self._appliances |= _names_of(session, Appliance, {line.appliance})
                self._jobs |= _names_of(session, Job, {line.job})
        return _shown(line, self._appliances, self._jobs)


def _as_json(line: FoundLine, names: _Names) -> str:
    return msgspec.json.encode(names.shown(line)).decode() + "\n"


def _as_text(line: FoundLine, names: _Names) -> str:
    shown = names.shown(line)
    parts = (shown["at"].isoformat(), line.level.value.upper(), shown["appliance_name"])
    who = shown["job_name"] or line.unit
    return " ".join(filter(None, (*parts, who))) + f": {line.text}\n"


def _shown(
    line: FoundLine, appliances: Mapping[str, str], jobs: Mapping[str, str]
) -> dict[str, Any]:
    values = asdict(line)
    appliance_id, job_id = values.pop("appliance"), values.pop("job")
    at: datetime = from_ns(line.at_ns)
    return values | {
        "at": at,
        "at_ns": str(line.at_ns),
        "appliance_id": appliance_id or None,
        "appliance_name": appliances.get(appliance_id, ""),
        "job_id": job_id or None,
        "job_name": jobs.get(job_id, ""),
    }


def _names_of(session: Session, model: type[Appliance | Job], ids: set[str]) -> dict[str, str]:
    """Return the names of objects by id; of a deleted one it is empty."""
    statement = select(model.id, model.name).where(model.id.in_(ids - {""}))
    return dict.fromkeys(ids, "") | {row.id: row.name for row in session.execute(statement)}


@contextmanager
def _turn() -> Iterator[None]:
    """Count a search as running: each takes a thread of the portal.

    It waits a little for others of the tenant: a page searches and counts at the same time.
    """
    running = portal().queries.running(current_scope().tenant_id or "", wait_seconds=_WAIT_SECONDS)
    with running as is_admitted:
        if not is_admitted:
            raise OverloadedError(
                "Your tenant is running as many searches as it may. Try again in a moment.",
                retry_after_seconds=_RETRY_SECONDS,
            )
        yield


def _sources() -> LogSources:
    parts = portal()
    return LogSources(parts.sessions, parts.log_files, current_scope(), now=now())

"""Builders for tests of logs: lines of appliances, records of jobs, and searches."""

# ruff: noqa: ANN401 - builders pass any field on

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.logs.log_files import LogFiles
from logs.ingest import store_batches
from logs.query import LogQuery
from logs.search import LogLines, search
from logs.sources import LogSources
from protocol.lines import ApplianceLine, LineBatch
from tenants.models import Appliance
from tenants.scope import Scope
from tests.cast import NOON

DAY = timedelta(days=1)


def record(text: str, *, second: float, stream: str = "stdout") -> bytes:
    """The record of a job's line, some seconds past noon."""
    at = NOON + timedelta(seconds=second)
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}Z {stream} F {text}\n".encode()


def line(text: str, *, second: float = 0, **fields: Any) -> ApplianceLine:
    """A line of an appliance, some seconds past noon."""
    at_ns = to_ns(NOON) + int(second * 1_000_000_000)
    return ApplianceLine(at_ns=at_ns, text=text, **fields)


def send(
    sessions: SessionFactory,
    appliance: Appliance,
    *lines: ApplianceLine,
    key: str = "k" * 16,
    now: datetime = NOON + timedelta(minutes=30),
) -> int:
    """Store lines as the agent API does; return how many batches were new."""
    with sessions.begin() as session:
        return store_batches(
            session,
            tenant_id=appliance.tenant_id,
            appliance_id=appliance.id,
            batches=[LineBatch(key=key, lines=list(lines))],
            now=now,
        )


class Searcher:
    """Searches in one scope."""

    def __init__(self, sessions: SessionFactory, files: LogFiles, scope: Scope) -> None:
        self.sources = LogSources(sessions, files, scope, now=NOON + timedelta(hours=1))

    def page(self, text: str = "", **changes: Any) -> LogLines:
        """Search a day before and after noon."""
        return search(self.query(text, **changes), self.sources.blocks)

    def texts(self, text: str = "", **changes: Any) -> list[str]:
        """Return what the lines say."""
        return [found_line.text for found_line in self.page(text, **changes).lines]

    @staticmethod
    def query(text: str = "", **changes: Any) -> LogQuery:
        """Return a query for a day before and after noon."""
        return replace(LogQuery.between(NOON - DAY, NOON + DAY, text), **changes)

"""The audit log as users read and export it: newest first, filtered, a page at a time.

A page starts where the last one ended, so that late pages cost no more than early ones, and nothing
is counted except by a chain's head.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from core.csv_cells import csv_text, guarded
from core.db import SessionFactory, transaction
from core.errors import InvalidInputError
from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from tenants.auditing.chain import COLUMNS
from tenants.models import AuditEntry, AuditHead
from tenants.permissions import Permission
from tenants.scope import Scope

EVERY_CHAIN = "all"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Entries are numbered when the transaction commits, a little after their time.
_OUT_OF_ORDER = timedelta(minutes=5)
# The number of entries that filters without an index scan for one page.
SCAN_LIMIT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Filters of the log; empty ones do not filter.

    `chain` (a tenant's id, `platform` or `all`) is only for operators. `action` may be a kind
    alone, `target` is an id or a whole name, `text` a part of the names, the action or the reason,
    and `before` the id of the last entry of the previous page.
    """

    chain: str = ""
    since: datetime | None = None
    until: datetime | None = None
    actor: str = ""
    action: str = ""
    target: str = ""
    text: str = ""
    before: str = ""

    @property
    def is_narrowed(self) -> bool:
        """Return whether the filters exclude entries of the chain."""
        return any((self.since, self.until, self.actor, self.action, self.target, self.text))


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, newest first; pass `next` as `before` for the next page.

    A page may be short or empty and have a `next`: filters without an index scan a limited number
    of entries for one page. `total` is None if it was not counted.
    """

    items: Sequence[AuditEntry]
    next: str | None
    total: int | None


def list_entries(
    session: Session, scope: Scope, query: AuditQuery, *, page_size: int = DEFAULT_PAGE_SIZE
) -> AuditPage:
    """Return a page of the log that the scope may read."""
    chain = chain_for(scope, query.chain)
    size = max(1, min(page_size, MAX_PAGE_SIZE))
    ids, scanned = _by_index(session, chain, query), _without_index(chain, query)
    if not scanned:
        statement = select(AuditEntry).where(*ids).order_by(*_order(chain))
    else:
        reach = select(AuditEntry.id).where(*ids).order_by(*_order(chain))
        window = reach.limit(SCAN_LIMIT).subquery()
        joined = select(AuditEntry).join(window, window.c.id == AuditEntry.id)
        statement = joined.where(*scanned).order_by(*_order(chain))
    entries = list(session.scalars(statement.limit(size + 1)))
    items = entries[:size]
    following = items[-1].id if len(entries) > size else None
    if scanned and following is None:
        following = session.scalar(reach.offset(SCAN_LIMIT - 1).limit(1))
    total = None if query.is_narrowed else _total(session, chain)
    return AuditPage(items=items, next=following, total=total)


def export_entries(
    sessions: SessionFactory, scope: Scope, query: AuditQuery
) -> Iterator[Sequence[AuditEntry]]:
    """Return all matching entries, newest first, in batches of a short transaction each."""
    before: str | None = query.before
    while before is not None:
        with transaction(sessions) as session:
            page = list_entries(
                session, scope, replace(query, before=before), page_size=MAX_PAGE_SIZE
            )
        yield page.items
        before = page.next


def chain_for(scope: Scope, wanted: str) -> str:
    """Return the chain to read: the operator's choice (all by default), or the own tenant's."""
    scope.require(Permission.VIEW_AUDIT)
    return scope.tenant_id or wanted or EVERY_CHAIN


def _by_index(session: Session, chain: str, query: AuditQuery) -> list[ColumnElement[bool]]:
    """Return the conditions that an index answers."""
    entry = AuditEntry
    last = _entry_before(session, chain, query.before) if query.before else None
    if chain == EVERY_CHAIN:
        conditions = _between(query)
        if last is not None:
            is_same_time = and_(entry.at == last.at, entry.id < last.id)
            conditions += [entry.at <= last.at, or_(entry.at < last.at, is_same_time)]
        return conditions
    conditions = [entry.chain == chain, *_between(query)]
    if query.since is not None:
        first = _number_near(session, chain, query.since - _OUT_OF_ORDER)
        conditions.append(entry.number >= (0 if first is None else first))
    if query.until is not None:
        end = _number_near(session, chain, query.until + _OUT_OF_ORDER)
        conditions += [] if end is None else [entry.number <= end]
    if last is not None:
        conditions.append(entry.number < last.number)
    if query.actor:
        conditions.append(entry.actor_name == query.actor)
    if "." in query.action:
        conditions.append(entry.action == query.action)
    if _ID.fullmatch(query.target):
        conditions.append(entry.target_id == query.target)
    return conditions


def _without_index(chain: str, query: AuditQuery) -> list[ColumnElement[bool]]:
    """Return the conditions that scan entries."""
    entry, conditions = AuditEntry, []
    is_every = chain == EVERY_CHAIN
    if query.actor and is_every:
        conditions.append(entry.actor_name == query.actor)
    if query.action and "." not in query.action:
        conditions.append(entry.action.startswith(f"{query.action}.", autoescape=True))
    elif query.action and is_every:
        conditions.append(entry.action == query.action)
    if query.target and _ID.fullmatch(query.target):
        conditions += [entry.target_id == query.target] if is_every else []
    elif query.target:
        conditions.append(entry.target_name == query.target)
    if query.text:
        columns = (entry.actor_name, entry.action, entry.target_name, entry.reason)
        conditions.append(
            or_(*(column.icontains(query.text, autoescape=True) for column in columns))
        )
    return conditions


def _between(query: AuditQuery) -> list[ColumnElement[bool]]:
    conditions = [] if query.since is None else [AuditEntry.at >= query.since]
    return conditions if query.until is None else [*conditions, AuditEntry.at < query.until]


def _order(chain: str) -> tuple[ColumnElement[Any], ...]:
    if chain == EVERY_CHAIN:
        return AuditEntry.at.desc(), AuditEntry.id.desc()
    return (AuditEntry.number.desc(),)


def _number_near(session: Session, chain: str, instant: datetime) -> int | None:
    """Return the number of the first entry from an instant on.

    Databases answer MIN by one index step; for ORDER BY with LIMIT, MariaDB scans the index.
    """
    entry = AuditEntry
    first = select(func.min(entry.at)).where(entry.chain == chain, entry.at >= instant)
    at_first = (entry.chain == chain, entry.at == first.scalar_subquery())
    return session.scalar(select(func.min(entry.number)).where(*at_first))


def _entry_before(session: Session, chain: str, ident: str) -> AuditEntry:
    entry = session.get(AuditEntry, ident)
    if entry is None or chain not in {EVERY_CHAIN, entry.chain}:
        error_text = f"Unknown entry {ident!r}. Start again without `before`."
        raise InvalidInputError(error_text, errors={"before": [error_text]})
    return entry


def _total(session: Session, chain: str) -> int | None:
    if chain == EVERY_CHAIN:
        return None
    return session.scalar(select(AuditHead.number).where(AuditHead.chain == chain)) or 0


class AuditFormat(StrEnum):
    """The file format; its value is the file extension."""

    CSV = "csv"
    JSONL = "jsonl"

    @property
    def media_type(self) -> str:
        """The HTTP media type."""
        return "text/csv" if self is AuditFormat.CSV else "application/x-ndjson"


def as_file(batches: Iterable[Sequence[AuditEntry]], wanted: AuditFormat) -> Iterator[str]:
    """Return the entries as parts of a file. JSON lines contain everything that is hashed."""
    if wanted is AuditFormat.CSV:
        yield _csv([dict(zip(COLUMNS, COLUMNS, strict=True))])
    for batch in batches:
        rows = [values_of(entry) for entry in batch]
        if wanted is AuditFormat.CSV:
            yield _csv(rows)
        else:
            yield "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def values_of(entry: AuditEntry) -> dict[str, object]:
    """Return an entry's columns, with its time in RFC 3339."""
    values = {name: getattr(entry, name) for name in COLUMNS}
    return {**values, "at": entry.at.isoformat(timespec="microseconds")}


def _csv(rows: Iterable[Mapping[str, object]]) -> str:
    return csv_text([_cell(row[name]) for name in COLUMNS] for row in rows)


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    return guarded(text)

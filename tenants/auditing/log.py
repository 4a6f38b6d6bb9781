"""The audit log as people read it: newest first, narrowed, a page at a time.

A page is found by where the last one ended, so that the millionth entry is as near as the first,
and nothing is counted but what a chain's head knows.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.errors import InvalidInputError
from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from tenants.models import PLATFORM_CHAIN, AuditEntry, AuditHead
from tenants.permissions import Permission
from tenants.scope import Scope

EVERY_CHAIN = "all"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Entries get their number a little after their instant, at the end of a transaction.
_OUT_OF_ORDER = timedelta(minutes=5)
# How many entries are looked at for one page where no index helps.
REACH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """What to show; empty is without a limit.

    Attributes:
        chain: a tenant's id, `platform` or `all`; for the operator, others see their tenant's.
        since: the first instant.
        until: the instant to stop before.
        actor: who did it: an email address, or a name such as `scheduler`.
        action: such as `membership.role_changed`, or its kind alone, `membership`.
        target: what it was done to: its id, or its whole name.
        text: somewhere in the names, the action or the reason.
        before: the id of the entry at which the page before ended.
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
        """Whether it leaves entries of its chain out."""
        return any((self.since, self.until, self.actor, self.action, self.target, self.text))


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, newest first; `next` goes into `before` for those that follow.

    A page may be short or empty and have a `next`: where no index helps, only so many entries are
    looked at for one page. `total` is None where it was not counted.
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
    ids, looked_at = _by_index(session, chain, query), _without_index(chain, query)
    if not looked_at:
        statement = select(AuditEntry).where(*ids).order_by(*_order(chain))
    else:
        reach = select(AuditEntry.id).where(*ids).order_by(*_order(chain))
        window = reach.limit(REACH).subquery()
        joined = select(AuditEntry).join(window, window.c.id == AuditEntry.id)
        statement = joined.where(*looked_at).order_by(*_order(chain))
    found = list(session.scalars(statement.limit(size + 1)))
    items = found[:size]
    following = items[-1].id if len(found) > size else None
    if looked_at and following is None:
        following = session.scalar(reach.offset(REACH - 1).limit(1))
    total = None if query.is_narrowed else _total(session, chain)
    return AuditPage(items=items, next=following, total=total)


def export_entries(
    sessions: SessionFactory, scope: Scope, query: AuditQuery
) -> Iterator[Sequence[AuditEntry]]:
    """Return all that a query finds, newest first, in batches of a short transaction each."""
    before: str | None = query.before
    while before is not None:
        with transaction(sessions) as session:
            page = list_entries(
                session, scope, replace(query, before=before), page_size=MAX_PAGE_SIZE
            )
        yield page.items
        before = page.next


def chain_for(scope: Scope, wanted: str) -> str:
    """Return the chain to read: the operator's choice, or that of one's own tenant."""
    scope.require(Permission.VIEW_AUDIT)
    return scope.tenant_id or wanted or PLATFORM_CHAIN


def _by_index(session: Session, chain: str, query: AuditQuery) -> list[ColumnElement[bool]]:
    """Return the conditions that an index of the list's order answers."""
    entry = AuditEntry
    last = _entry_before(session, chain, query.before) if query.before else None
    if chain == EVERY_CHAIN:
        return [*_between(query), *([] if last is None else _older_than(last))]
    found = [entry.chain == chain, *_between(query)]
    if query.since is not None:
        first = _number_near(session, chain, query.since - _OUT_OF_ORDER)
        found.append(entry.number >= (0 if first is None else first))
    if query.until is not None:
        end = _number_near(session, chain, query.until + _OUT_OF_ORDER)
        found += [] if end is None else [entry.number <= end]
    if last is not None:
        found.append(entry.number < last.number)
    if query.actor:
        found.append(entry.actor_name == query.actor)
    if "." in query.action:
        found.append(entry.action == query.action)
    if _ID.fullmatch(query.target):
        found.append(entry.target_id == query.target)
    return found


def _without_index(chain: str, query: AuditQuery) -> list[ColumnElement[bool]]:
    """Return the conditions for which entries have to be looked at."""
    entry, found = AuditEntry, []
    is_every = chain == EVERY_CHAIN
    if query.actor and is_every:
        found.append(entry.actor_name == query.actor)
    if query.action and "." not in query.action:
        found.append(entry.action.startswith(f"{query.action}.", autoescape=True))
    elif query.action and is_every:
        found.append(entry.action == query.action)
    if query.target and _ID.fullmatch(query.target):
        found += [entry.target_id == query.target] if is_every else []
    elif query.target:
        found.append(entry.target_name == query.target)
    if query.text:
        columns = (entry.actor_name, entry.action, entry.target_name, entry.reason)
        found.append(or_(*(one.icontains(query.text, autoescape=True) for one in columns)))
    return found


def _between(query: AuditQuery) -> list[ColumnElement[bool]]:
    since = [] if query.since is None else [AuditEntry.at >= query.since]
    return [*since, *([] if query.until is None else [AuditEntry.at < query.until])]


def _older_than(last: AuditEntry) -> list[ColumnElement[bool]]:
    entry = AuditEntry
    at_once = and_(entry.at == last.at, entry.id < last.id)
    return [entry.at <= last.at, or_(entry.at < last.at, at_once)]


def _order(chain: str) -> tuple[ColumnElement[Any], ...]:
    if chain == EVERY_CHAIN:
        return AuditEntry.at.desc(), AuditEntry.id.desc()
    return (AuditEntry.number.desc(),)


def _number_near(session: Session, chain: str, instant: datetime) -> int | None:
    """Return the number of the first entry from an instant on: time's place in the order.

    Databases answer MIN by one step into the index; for ORDER BY with LIMIT, MariaDB walks it.
    """
    entry = AuditEntry
    first = select(func.min(entry.at)).where(entry.chain == chain, entry.at >= instant)
    at_first = (entry.chain == chain, entry.at == first.scalar_subquery())
    return session.scalar(select(func.min(entry.number)).where(*at_first))


def _entry_before(session: Session, chain: str, ident: str) -> AuditEntry:
    found = session.get(AuditEntry, ident)
    if found is None or chain not in {EVERY_CHAIN, found.chain}:
        fault = f"There is no entry {ident!r} in this log. Start again without `before`."
        raise InvalidInputError(fault, errors={"before": [fault]})
    return found


def _total(session: Session, chain: str) -> int | None:
    if chain == EVERY_CHAIN:
        return None
    return session.scalar(select(AuditHead.number).where(AuditHead.chain == chain)) or 0

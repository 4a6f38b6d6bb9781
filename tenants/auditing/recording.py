"""Records actions and changes in the audit log.

Set the actor of a session with `set_actor`, or use a factory from `acting`. From then on every
change of a row whose model declares how it is `audited` is recorded by a session listener. Call
`record` for anything else (sign-ins, exports, Core updates), or to give a change a better name: it
is merged with what the listener observed. Entries are written at the end of the transaction, and
are rolled back with it.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from sqlalchemy import event, inspect, select
from sqlalchemy.orm import InstanceState, Session, SessionTransaction, sessionmaker

from core.clock import Clock
from core.db import SessionFactory
from tenants.auditing.chain import append
from tenants.auditing.drafts import (
    NOBODY,
    Actor,
    Draft,
    actor_info,
    actor_of,
    clock_of,
    drafts_of,
    merge_drafts,
)
from tenants.models import PLATFORM_CHAIN, Membership, Tenant, User
from tenants.models.audit import Audited


def set_actor(session: Session, actor: Actor, *, clock: Clock) -> None:
    """Set the actor and the clock of a session."""
    install()
    session.info.update(actor_info(actor, clock))


def acting(sessions: SessionFactory, actor: Actor, *, clock: Clock) -> SessionFactory:
    """Return a copy of a session factory whose sessions have this actor."""
    install()
    options = dict(sessions.kw)
    options["info"] = {**(options.get("info") or {}), **actor_info(actor, clock)}
    return sessionmaker(**options)


def record(
    session: Session,
    *,
    action: str,
    target_kind: str = "",
    target_id: str | None = None,
    target_name: str,
    tenant_id: str | None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    is_foreign: bool = False,
    now: datetime,
) -> None:
    """Record an action; the entry is written when the session commits.

    `action` is `<kind>.<verb>`, such as `membership.role_changed`; that is also the kind of the
    target, unless a `target_kind` is given. Without a `tenant_id`, the platform's log gets the
    entry. `before` and `after` are values by name, never secrets. If the actor `is_foreign` to the
    tenant, the entry has their name alone, not where they sent it from.
    """
    install()
    actor = actor_of(session) or NOBODY
    if is_foreign:
        actor = Actor(name=actor.name, via="marketplace")
    drafts_of(session).append(
        Draft(
            chain=tenant_id or PLATFORM_CHAIN,
            at=now,
            actor=actor,
            action=action,
            target_kind=target_kind or action.partition(".")[0],
            target_id=target_id,
            target_name=target_name,
            before=before,
            after=after,
            reason=reason,
        )
    )


SECRET = "(secret)"  # noqa: S105 - a placeholder
_MARKS = "audit_marks"
_FORMER = "audit_former"


def install() -> None:
    """Register the listeners for all sessions, once."""
    for name, listener in _LISTENERS.items():
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener)


def json_value(value: object) -> object:
    """Return a column's value as JSON."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, datetime) else value


def audited_of(row: object) -> Audited | None:
    """Return how a row is audited; None if it is not."""
    audited: Audited | None = getattr(type(row), "audited", None)
    return audited


def _read_former(session: Session, _context: object, _instances: object) -> None:
    """Read the stored values of attributes that were overwritten without being loaded."""
    if actor_of(session) is None:
        return
    former = session.info.setdefault(_FORMER, {})
    for row in session.dirty:
        audited, state = audited_of(row), _state(row)
        for name in () if audited is None else state.committed_state.keys() & audited.fields:
            history = state.attrs[name].history
            if history.added and not history.deleted:
                former[id(row), name] = _stored(session, row, name)


def _state(row: object) -> InstanceState[Any]:
    state: InstanceState[Any] = inspect(row)
    return state


def _stored(session: Session, row: object, name: str) -> object:
    mapper = inspect(type(row))
    (key,) = mapper.primary_key
    with session.no_autoflush:
        ident = inspect(row).identity
        return session.scalar(select(getattr(type(row), name)).where(key == ident[0]))


def _observe(session: Session, _context: object) -> None:
    actor = actor_of(session)
    if actor is None:
        return
    drafts, now = drafts_of(session), clock_of(session)()
    for rows, describe in (
        (session.new, _created),
        (session.dirty, _changed),
        (session.deleted, _deleted),
    ):
        for row in rows:
            drafts += _drafts(session, row, describe, actor=actor, now=now)
    session.info.pop(_FORMER, None)


_Change = tuple[str, dict[str, Any] | None, dict[str, Any] | None]


def _drafts(
    session: Session,
    row: object,
    describe: Callable[[Session, object, Audited], _Change | None],
    *,
    actor: Actor,
    now: datetime,
) -> Iterator[Draft]:
    audited = audited_of(row)
    change = None if audited is None else describe(session, row, audited)
    if audited is None or change is None:
        return
    verb, before, after = change
    for chain in chains_of(session, row):
        yield Draft(
            chain=chain,
            at=now,
            actor=actor,
            action=f"{audited.kind}.{verb}",
            target_kind=audited.kind,
            target_id=inspect(row).mapper.primary_key_from_instance(row)[0],
            target_name=name_of(session, row, audited),
            before=before,
            after=after,
            is_observed=True,
        )


def _created(_session: Session, row: object, audited: Audited) -> _Change:
    return audited.created, None, _values(row, audited)


def _deleted(_session: Session, row: object, audited: Audited) -> _Change:
    return "deleted", _values(row, audited), None


def _changed(session: Session, row: object, audited: Audited) -> _Change | None:
    former = session.info.get(_FORMER, {})
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    changed: dict[str, object] = {}
    state = _state(row)
    for name in (*audited.fields, *audited.secrets):
        # The history of what was not set would be computed in vain: a file changes many rows.
        history = state.attrs[name].history if name in state.committed_state else None
        if history is None or not history.added:
            continue
        old = history.deleted[0] if history.deleted else former.get((id(row), name))
        new = changed[name] = history.added[0]
        if old == new:
            del changed[name]
            continue
        label = audited.secrets.get(name, name)
        convert = json_value if name in audited.fields else _hidden
        before[label], after[label] = convert(old), convert(new)
    return (audited.verb_of(changed), before, after) if changed else None


def _values(row: object, audited: Audited) -> dict[str, Any]:
    values = {name: json_value(getattr(row, name)) for name in audited.fields}
    return {name: value for name, value in values.items() if value not in (None, "", {}, [])}


def _hidden(value: object) -> str | None:
    return SECRET if value else None


def _write(session: Session) -> None:
    """Append the transaction's entries to the log, as its last statement."""
    if session.in_nested_transaction():
        return
    if actor_of(session) is not None:
        session.flush()
    waiting = drafts_of(session)
    if waiting:
        append(session, merge_drafts(waiting))
        waiting.clear()


def _mark(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session.info.setdefault(_MARKS, {})[transaction] = len(drafts_of(session))


def _forget(session: Session, transaction: SessionTransaction) -> None:
    """Drop the entries of what was rolled back: to the savepoint, or all."""
    mark = session.info.get(_MARKS, {}).get(transaction, 0)
    if transaction.nested or transaction.parent is None:
        del drafts_of(session)[mark:]


def _unmark(session: Session, transaction: SessionTransaction) -> None:
    # A savepoint ends before the event of its rollback: keep its mark until the outermost ends.
    if transaction.parent is None:
        session.info.pop(_MARKS, None)


_LISTENERS: dict[str, Callable[..., None]] = {
    "before_flush": _read_former,
    "after_flush": _observe,
    "before_commit": _write,
    "after_transaction_create": _mark,
    "after_soft_rollback": _forget,
    "after_transaction_end": _unmark,
}


def chains_of(session: Session, row: object) -> list[str]:
    """Return the chains that record a row.

    A tenant is recorded in its own chain and the platform's, a user in those of all their tenants.
    """
    if isinstance(row, Tenant):
        return [row.id, PLATFORM_CHAIN]
    if isinstance(row, User):
        return user_chains(session, row.id)
    tenant_id: str | None = getattr(row, "tenant_id", None)
    if tenant_id is None and not hasattr(row, "tenant_id") and hasattr(row, "user_id"):
        return user_chains(session, row.user_id)
    return [tenant_id or PLATFORM_CHAIN]


def user_chains(session: Session, user_id: str) -> list[str]:
    """Return the chains that record a user: of each of their tenants, else the platform's."""
    with session.no_autoflush:
        tenant_ids = session.scalars(
            select(Membership.tenant_id).where(Membership.user_id == user_id)
        )
        return sorted(set(tenant_ids)) or [PLATFORM_CHAIN]


def name_of(session: Session, row: object, audited: Audited) -> str:
    """Return the name of a row; `user.email` is read from the related row."""
    first, _, related_name = audited.name.partition(".")
    value = (
        _related_value(session, row, first, related_name) if related_name else getattr(row, first)
    )
    return "" if value is None else str(value)


def _related_value(session: Session, row: object, relation: str, name: str) -> object | None:
    """Return a value of a related row.

    It is not loaded as an object: in a flush, that may load a second object for a row.
    """
    related = inspect(row).dict.get(relation)
    if related is not None:
        value: object = getattr(related, name)
        return value
    mapper = inspect(type(row))
    relationship = mapper.relationships[relation]
    local, remote = (relationship.local_remote_pairs or [])[0]
    key = getattr(row, mapper.get_property_by_column(local).key)
    column = relationship.mapper.columns[name]
    with session.no_autoflush:
        return session.scalar(select(column).where(remote == key))

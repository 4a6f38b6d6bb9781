"""Notices every change of an audited row, so that no service can forget to tell of it.

It listens to all sessions and works on those that have an actor. What Core's `update()` changes
goes past it: services tell of those by `tenants.audit.record`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import event, inspect, select
from sqlalchemy.orm import Session, SessionTransaction

from tenants.auditing.chain import append
from tenants.auditing.drafts import Actor, Draft, actor_of, clock_of, drafts_of, settle
from tenants.auditing.places import chains_of, name_of
from tenants.models.audited import Audited

SECRET = "(secret)"  # noqa: S105 - what is told in a secret's stead
_MARKS = "audit_marks"
_FORMER = "audit_former"


def install() -> None:
    """Listen to every session; doing it twice is fine."""
    for name, listener in _LISTENERS.items():
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener)


def told(value: object) -> object:
    """Return a column's value as the log's JSON holds it."""
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, datetime) else value


def audited_of(row: object) -> Audited | None:
    """Return how a row is audited, if it is."""
    found: Audited | None = getattr(type(row), "audited", None)
    return found


def _read_former(session: Session, _context: object, _instances: object) -> None:
    """Read what the database still holds of values that were overwritten without a look."""
    if actor_of(session) is None:
        return
    former = session.info.setdefault(_FORMER, {})
    for row in session.dirty:
        audited = audited_of(row)
        for name in () if audited is None else audited.fields:
            history = inspect(row).attrs[name].history
            if history.added and not history.deleted:
                former[id(row), name] = _stored(session, row, name)


def _stored(session: Session, row: object, name: str) -> object:
    mapper = inspect(type(row))
    (key,) = mapper.primary_key
    with session.no_autoflush:
        ident = inspect(row).identity
        return session.scalar(select(getattr(type(row), name)).where(key == ident[0]))


def _notice(session: Session, _context: object) -> None:
    actor = actor_of(session)
    if actor is None:
        return
    drafts, now = drafts_of(session), clock_of(session)()
    for row in session.new:
        drafts += _drafts(session, row, _created, actor=actor, now=now)
    for row in session.dirty:
        drafts += _drafts(session, row, _changed, actor=actor, now=now)
    for row in session.deleted:
        drafts += _drafts(session, row, _deleted, actor=actor, now=now)
    session.info.pop(_FORMER, None)


_Told = tuple[str, dict[str, Any] | None, dict[str, Any] | None]


def _drafts(
    session: Session,
    row: object,
    tell: Callable[[Session, object, Audited], _Told | None],
    *,
    actor: Actor,
    now: datetime,
) -> Iterator[Draft]:
    audited = audited_of(row)
    found = None if audited is None else tell(session, row, audited)
    if audited is None or found is None:
        return
    verb, before, after = found
    for chain in chains_of(session, row):
        yield Draft(
            chain=chain, at=now, actor=actor, action=f"{audited.kind}.{verb}",
            target_kind=audited.kind, target_id=_ident(row),
            target_name=name_of(session, row, audited), before=before, after=after, is_seen=True,
        )  # fmt: skip


def _ident(row: object) -> str:
    ident: str = inspect(row).mapper.primary_key_from_instance(row)[0]
    return ident


def _created(_session: Session, row: object, audited: Audited) -> _Told:
    return audited.created, None, _values(row, audited)


def _deleted(_session: Session, row: object, audited: Audited) -> _Told:
    return "deleted", _values(row, audited), None


def _changed(session: Session, row: object, audited: Audited) -> _Told | None:
    former = session.info.get(_FORMER, {})
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    changed: dict[str, object] = {}
    for name in (*audited.fields, *audited.secrets):
        history = inspect(row).attrs[name].history
        if not history.added:
            continue
        old = history.deleted[0] if history.deleted else former.get((id(row), name))
        new = changed[name] = history.added[0]
        if old == new:
            del changed[name]
            continue
        label, tell = audited.secrets.get(name, name), told if name in audited.fields else _hidden
        before[label], after[label] = tell(old), tell(new)
    return (audited.verb_of(changed), before, after) if changed else None


def _values(row: object, audited: Audited) -> dict[str, Any]:
    values = {name: told(getattr(row, name)) for name in audited.fields}
    return {name: value for name, value in values.items() if value not in (None, "", {}, [])}


def _hidden(value: object) -> str | None:
    return SECRET if value else None


def _write(session: Session) -> None:
    """Put the transaction's entries into the log, as its last act."""
    if session.in_nested_transaction():
        return
    if actor_of(session) is not None:
        session.flush()
    waiting = drafts_of(session)
    if waiting:
        append(session, settle(waiting))
        waiting.clear()


def _mark(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session.info.setdefault(_MARKS, {})[transaction] = len(drafts_of(session))


def _forget(session: Session, transaction: SessionTransaction) -> None:
    """Drop the entries of what was rolled back: to the savepoint, or all of them."""
    mark = session.info.get(_MARKS, {}).get(transaction, 0)
    if transaction.nested or transaction.parent is None:
        del drafts_of(session)[mark:]


def _unmark(session: Session, transaction: SessionTransaction) -> None:
    # A savepoint ends before its rollback is told of: its mark stays as long as the whole.
    if transaction.parent is None:
        session.info.pop(_MARKS, None)


_LISTENERS: dict[str, Callable[..., None]] = {
    "before_flush": _read_former,
    "after_flush": _notice,
    "before_commit": _write,
    "after_transaction_create": _mark,
    "after_soft_rollback": _forget,
    "after_transaction_end": _unmark,
}

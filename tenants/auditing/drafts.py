"""Who acts on a session, and the entries that wait on it for the end of its transaction.

Both live in `session.info`, so that services need not pass them on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from core.clock import Clock

_ACTOR = "audit_actor"
_CLOCK = "audit_clock"
_DRAFTS = "audit_drafts"

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who does something, and from where.

    Attributes:
        name: for people: an email address, `agent node-7`, `scheduler`.
        via: the way in, such as `browser` or `API token nightly`.
        user_id: None where it is not a person.
        address: the network address that asks.
        user_agent: what the program that asks calls itself.
    """

    name: str
    via: str
    user_id: str | None = None
    address: str = ""
    user_agent: str = ""


NOBODY = Actor(name="unknown", via="unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry before it has its place in a chain. `is_seen` marks what the listener noticed."""

    chain: str
    at: datetime
    actor: Actor
    action: str
    target_kind: str
    target_id: str | None
    target_name: str
    before: Values | None = None
    after: Values | None = None
    reason: str = ""
    is_seen: bool = False

    @property
    def kind(self) -> str:
        """What the action is about, which may be something else than its target."""
        return self.action.partition(".")[0]


def actor_info(actor: Actor, clock: Clock) -> dict[str, Any]:
    """Return what tells a session who acts on it, for `Session.info`."""
    return {_ACTOR: actor, _CLOCK: clock}


def actor_of(session: Session) -> Actor | None:
    """Return who acts on a session, if anybody was named."""
    found: Actor | None = session.info.get(_ACTOR)
    return found


def clock_of(session: Session) -> Clock:
    """Return the clock of a session that has an actor."""
    clock: Clock = session.info[_CLOCK]
    return clock


def drafts_of(session: Session) -> list[Draft]:
    """Return the entries that wait for the end of the session's transaction."""
    waiting: list[Draft] = session.info.setdefault(_DRAFTS, [])
    return waiting


def settle(drafts: list[Draft]) -> list[Draft]:
    """Return the entries to write: several that tell of one change become one.

    A row that is made and filled in by two flushes is one creation. Where a service names a change
    that the listener noticed too, the service's name and reason are joined by what was noticed.
    """
    settled: list[Draft] = []
    places: dict[tuple[str, str, str | None], int] = {}
    for draft in drafts:
        what = (draft.chain, draft.kind, draft.target_id)
        at = places.get(what)
        if at is not None and _tell_the_same(settled[at], draft):
            settled[at] = _joined(settled[at], draft)
        else:
            places[what] = len(settled)
            settled.append(draft)
    return settled


def _tell_the_same(one: Draft, other: Draft) -> bool:
    """Whether two entries of one row, the one right after the other, are of one change."""
    if one.target_id is None or not (one.is_seen or other.is_seen):
        return False
    return not (one.is_seen and other.is_seen) or _is_changed_only(other)


def _is_changed_only(draft: Draft) -> bool:
    return draft.before is not None and draft.after is not None


def _joined(one: Draft, other: Draft) -> Draft:
    named = other if one.is_seen and not other.is_seen else one
    is_new = one.is_seen and one.before is None
    before = None if is_new else {**(other.before or {}), **(one.before or {})}
    after = {**(one.after or {}), **(other.after or {})}
    joined = replace(named, before=before or None, after=after or None)
    if one.is_seen and other.is_seen:
        action = one.action if is_new or one.action == other.action else f"{one.kind}.changed"
        return replace(joined, action=action, target_name=other.target_name)
    return replace(joined, is_seen=False)

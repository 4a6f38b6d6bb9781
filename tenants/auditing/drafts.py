"""The actor of a session, and the entries that wait for its commit; both are in `session.info`."""

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
    """The user or process behind an action, and its origin.

    `name` is an email address, `agent node-7` or `scheduler`; `via` is how they authenticated, such
    as `browser` or `API token nightly`.
    """

    name: str
    via: str
    user_id: str | None = None
    address: str = ""
    user_agent: str = ""


NOBODY = Actor(name="unknown", via="unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry that is not in a chain yet. `is_observed`: recorded by the session listener."""

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
    is_observed: bool = False

    @property
    def kind(self) -> str:
        """The kind of the action, which may differ from its target's."""
        return self.action.partition(".")[0]


def actor_info(actor: Actor, clock: Clock) -> dict[str, Any]:
    """Return the actor and clock for `Session.info`."""
    return {_ACTOR: actor, _CLOCK: clock}


def actor_of(session: Session) -> Actor | None:
    """Return the actor of a session, if one is set."""
    actor: Actor | None = session.info.get(_ACTOR)
    return actor


def clock_of(session: Session) -> Clock:
    """Return the clock of a session that has an actor."""
    clock: Clock = session.info[_CLOCK]
    return clock


def drafts_of(session: Session) -> list[Draft]:
    """Return the entries that wait for the session's commit."""
    waiting: list[Draft] = session.info.setdefault(_DRAFTS, [])
    return waiting


def merge_drafts(drafts: list[Draft]) -> list[Draft]:
    """Return the entries to write, with those of one change merged.

    A row that is inserted and updated by two flushes is one creation. Where a service records a
    change that the listener observed too, the service's action and reason get the observed values.
    """
    merged_drafts: list[Draft] = []
    places: dict[tuple[str, str, str | None], int] = {}
    for draft in drafts:
        key = (draft.chain, draft.kind, draft.target_id)
        at = places.get(key)
        if at is not None and _is_same_change(merged_drafts[at], draft):
            merged_drafts[at] = _merged(merged_drafts[at], draft)
        else:
            places[key] = len(merged_drafts)
            merged_drafts.append(draft)
    return merged_drafts


def _is_same_change(earlier: Draft, later: Draft) -> bool:
    """Return whether two consecutive entries of one row are of one change."""
    if earlier.target_id is None or not (earlier.is_observed or later.is_observed):
        return False
    is_update = later.before is not None and later.after is not None
    return is_update or not (earlier.is_observed and later.is_observed)


def _merged(earlier: Draft, later: Draft) -> Draft:
    named = later if earlier.is_observed and not later.is_observed else earlier
    is_new = earlier.is_observed and earlier.before is None
    before = None if is_new else {**(later.before or {}), **(earlier.before or {})}
    after = {**(earlier.after or {}), **(later.after or {})}
    merged = replace(named, before=before or None, after=after or None)
    if earlier.is_observed and later.is_observed:
        action = (
            earlier.action
            if is_new or earlier.action == later.action
            else f"{earlier.kind}.changed"
        )
        return replace(merged, action=action, target_name=later.target_name)
    return replace(merged, is_observed=False)

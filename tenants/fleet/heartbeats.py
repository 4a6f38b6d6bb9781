"""Heartbeats: an appliance is alive, and says what it has and how it does.

Most tell nothing new and cost a look and a guarded write. One that tells news has its appliance's
row to itself, so that each thing that happened becomes one event.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from tenants.entry.agents import lock_appliance
from tenants.entry.fencing import take_over
from tenants.fleet.events import EventKind, add_event, last_details
from tenants.fleet.news import Known, News, may_tell_of_clock, news_of, span_words
from tenants.models import Appliance, ApplianceState, HealthState, class_told, gpus_told


def record_heartbeat(
    session: Session,
    appliance_id: str,
    *,
    inventory: dict[str, Any],
    agent_version: str,
    sent_at: datetime,
    now: datetime,
    health: dict[str, Any] | None = None,
    instance_id: str = "",
) -> None:
    """Note that an appliance is alive: online, with this inventory and this health.

    An agent that tells no `health` leaves it unknown. `sent_at` is the agent's clock and `now` the
    portal's; their difference is kept as the skew, positive where the agent's clock is ahead.
    `instance_id` is of the agent's present run: two runs at a time fence the appliance.
    """
    skew_seconds = (sent_at - now).total_seconds()
    beat = _Beat(Known(inventory, health, agent_version, skew_seconds), now, instance_id)
    seen = session.execute(select(*_LOOKED_AT).where(Appliance.id == appliance_id)).one_or_none()
    if seen is None or seen.revoked_at is not None or seen.retired_at is not None:
        return
    if instance_id and seen.instance_id != instance_id:
        if not take_over(session, appliance_id, instance_id, now=now):
            return
    elif not _news(session, seen, beat) and _store(session, seen, beat):
        return
    locked = lock_appliance(session, appliance_id)
    if locked.revoked_at is not None or locked.retired_at is not None:
        return
    found = _news(session, locked, beat)
    if _store(session, locked, beat):
        for news in found:
            add_event(session, locked, news.kind, news.message, details=news.details, now=now)


@dataclass(frozen=True, slots=True)
class _Beat:
    told: Known
    at: datetime
    instance_id: str


_LOOKED_AT = (
    Appliance.id, Appliance.state, Appliance.inventory, Appliance.health, Appliance.agent_version,
    Appliance.clock_skew_seconds, Appliance.last_seen_at, Appliance.revoked_at,
    Appliance.retired_at, Appliance.instance_id,
)  # fmt: skip
_Seen = Row[Any] | Appliance


def _news(session: Session, seen: _Seen, beat: _Beat) -> list[News]:
    skew_seconds = seen.clock_skew_seconds
    is_told_off = may_tell_of_clock(skew_seconds, beat.told.clock_skew_seconds) and last_details(
        session, seen.id, EventKind.CLOCK
    ).get("is_off", False)
    before = Known(
        seen.inventory, seen.health, seen.agent_version, skew_seconds, is_clock_told_off=is_told_off
    )
    found = news_of(before, beat.told)
    if seen.state is ApplianceState.ONLINE:
        return found
    details = {"before": seen.state.value, "after": ApplianceState.ONLINE.value}
    return [News(EventKind.STATE, _came_back(seen, beat.at), details), *found]


def _came_back(seen: _Seen, now: datetime) -> str:
    if seen.last_seen_at is None:
        return "Online for the first time."
    return f"Online again after {span_words(now - seen.last_seen_at)} of silence."


def _store(session: Session, seen: _Seen, beat: _Beat) -> bool:
    """Write what is new; return False where the appliance was changed since it was seen."""
    told = beat.told
    values: dict[str, Any] = {
        "state": ApplianceState.ONLINE,
        "agent_version": told.agent_version,
        "clock_skew_seconds": told.clock_skew_seconds,
        "last_seen_at": beat.at,
    }
    if told.inventory != seen.inventory:
        values |= {"inventory": told.inventory, **gpus_told(told.inventory)}
    if told.health != seen.health:
        values |= {
            "health": told.health,
            "health_state": None if told.health is None else HealthState(told.health["state"]),
            **class_told(told.health),
        }
    statement = update(Appliance).where(
        Appliance.id == seen.id,
        Appliance.state == seen.state,
        Appliance.revoked_at.is_(None),
        Appliance.retired_at.is_(None),
    )
    if beat.instance_id:
        statement = statement.where(Appliance.instance_id == beat.instance_id)
    stored = session.execute(statement.values(**values))
    return bool(stored.rowcount)  # type: ignore[attr-defined] # an UPDATE gives a CursorResult

"""What the portal makes of an appliance's silence: online, stale, unreachable, lost.

Silence is counted on the portal's clock since the last heartbeat was received. It is not death:
only a *lost* appliance's jobs may be placed anew, and when a large share of the fleet falls silent
together the portal suspects itself and calls nobody lost (the *brake*; see
`tenants.fleet.outages`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from tenants.fleet.events import EventKind, add_event
from tenants.fleet.life import in_service
from tenants.fleet.news import span_words
from tenants.fleet.outages import Silence, hold_brake
from tenants.models import Appliance, ApplianceState

_S = ApplianceState
TRANSITIONS: dict[ApplianceState, frozenset[ApplianceState]] = {
    _S.ENROLLED: frozenset({_S.ONLINE, _S.STALE, _S.UNREACHABLE, _S.LOST}),
    _S.ONLINE: frozenset({_S.STALE, _S.UNREACHABLE, _S.LOST}),
    _S.STALE: frozenset({_S.ONLINE, _S.UNREACHABLE, _S.LOST}),
    _S.UNREACHABLE: frozenset({_S.ONLINE, _S.LOST}),
    _S.LOST: frozenset({_S.ONLINE}),
}
_BY_SILENCE = (_S.ONLINE, _S.STALE, _S.UNREACHABLE, _S.LOST)
_SILENT = frozenset({_S.UNREACHABLE, _S.LOST})
_INSTANT = Appliance.enrolled_at.type


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How long a silence makes an appliance stale, unreachable and lost."""

    stale_after: timedelta
    unreachable_after: timedelta
    lost_after: timedelta


@dataclass(frozen=True, slots=True)
class ApplianceChange:
    """An appliance that moved to another state in a sweep."""

    appliance_id: str
    tenant_id: str
    name: str
    before: ApplianceState
    after: ApplianceState


def next_state(
    current: ApplianceState, silence: timedelta, thresholds: Thresholds
) -> ApplianceState:
    """Return the state after this much silence; only a heartbeat leads back to a better one."""
    steps = (thresholds.stale_after, thresholds.unreachable_after, thresholds.lost_after)
    by_silence = _BY_SILENCE[sum(silence > step for step in steps)]
    if by_silence is _S.ONLINE or by_silence not in TRANSITIONS[current]:
        return current
    return by_silence


def sweep_appliances(
    session: Session,
    *,
    now: datetime,
    stale_after: timedelta,
    unreachable_after: timedelta,
    lost_after: timedelta,
    listening_since: datetime | None = None,
) -> list[ApplianceChange]:
    """Move silent appliances on and return those that moved.

    Those that are revoked or retired are left alone.

    Args:
        session: the database session.
        now: the present instant.
        stale_after: silence that makes an appliance stale.
        unreachable_after: silence that makes it unreachable.
        lost_after: silence that makes it lost.
        listening_since: when this portal began to hear heartbeats; its own downtime before that
            is nobody's silence.
    """
    thresholds = Thresholds(stale_after, unreachable_after, lost_after)
    quiet = _quiet(session, before=now - stale_after)
    planned = [
        (one, next_state(one.state, _silence(one, now, listening_since), thresholds))
        for one in quiet
    ]
    silent = sum(after in _SILENT for _, after in planned)
    is_held = hold_brake(session, Silence(silent, _fleet_count(session)), now=now)
    changes = []
    for one, by_silence in planned:
        after = _S.UNREACHABLE if is_held and by_silence is _S.LOST else by_silence
        if one.state is not after and _move(session, one, after, now=now):
            changes.append(ApplianceChange(one.id, one.tenant_id, one.name, one.state, after))
    return changes


@dataclass(frozen=True, slots=True)
class _Quiet:
    """An appliance that was not heard for a while."""

    id: str
    tenant_id: str
    name: str
    state: ApplianceState
    last_seen_at: datetime | None
    enrolled_at: datetime


_FLEET = (in_service(), Appliance.state != _S.LOST)


def _quiet(session: Session, *, before: datetime) -> Sequence[_Quiet]:
    heard_at = func.coalesce(Appliance.last_seen_at, Appliance.enrolled_at, type_=_INSTANT)
    statement = select(
        Appliance.id, Appliance.tenant_id, Appliance.name, Appliance.state,
        Appliance.last_seen_at, Appliance.enrolled_at,
    ).where(*_FLEET, heard_at < before)  # fmt: skip
    return [_Quiet(*row) for row in session.execute(statement.order_by(Appliance.id))]


def _fleet_count(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(Appliance).where(*_FLEET)) or 0


def _silence(one: _Quiet, now: datetime, listening_since: datetime | None) -> timedelta:
    heard_at = one.last_seen_at or one.enrolled_at
    return now - max(heard_at, listening_since or heard_at)


def _move(session: Session, one: _Quiet, after: ApplianceState, *, now: datetime) -> bool:
    # A heartbeat that came in between has changed the state or last_seen_at: it wins.
    moved = session.execute(
        update(Appliance)
        .where(
            Appliance.id == one.id,
            Appliance.state == one.state,
            Appliance.last_seen_at.is_not_distinct_from(one.last_seen_at),
        )
        .values(state=after)
    )
    if not moved.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        return False
    silence = span_words(now - (one.last_seen_at or one.enrolled_at))
    message = f"{after.value.capitalize()}: nothing was heard of it for {silence}."
    details = {"before": one.state.value, "after": after.value}
    add_event(session, one, EventKind.STATE, message, details=details, now=now)
    return True

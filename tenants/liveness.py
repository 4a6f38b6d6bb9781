"""What the portal makes of an appliance's silence: online, stale, unreachable, lost.

Silence is counted on the portal's clock since the last heartbeat was received. It is not death:
only a *lost* appliance's jobs may be placed anew, and when a large share of the fleet falls silent
together the portal suspects itself and calls nobody lost.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tenants.models import Appliance, ApplianceState

logger = logging.getLogger(__name__)

# The brake: this many appliances and this share of the fleet fell silent together.
BRAKE_COUNT = 5
BRAKE_RATIO = 0.5

_S = ApplianceState
TRANSITIONS: dict[ApplianceState, frozenset[ApplianceState]] = {
    _S.ENROLLED: frozenset({_S.ONLINE, _S.STALE, _S.UNREACHABLE, _S.LOST}),
    _S.ONLINE: frozenset({_S.STALE, _S.UNREACHABLE, _S.LOST}),
    _S.STALE: frozenset({_S.ONLINE, _S.UNREACHABLE, _S.LOST}),
    _S.UNREACHABLE: frozenset({_S.ONLINE, _S.LOST}),
    _S.LOST: frozenset({_S.ONLINE}),
}
_BY_SILENCE = (_S.ONLINE, _S.STALE, _S.UNREACHABLE, _S.LOST)


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
    """Move silent appliances on and return those that moved; revoked ones are left alone.

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
    statement = select(Appliance).where(Appliance.revoked_at.is_(None), Appliance.state != _S.LOST)
    fleet = session.scalars(
        statement.order_by(Appliance.id), execution_options={"populate_existing": True}
    ).all()
    planned = [
        (a, next_state(a.state, _silence(a, now, listening_since), thresholds)) for a in fleet
    ]
    is_braked = _is_braked([after for _, after in planned])
    changes = []
    for appliance, planned_state in planned:
        after = _S.UNREACHABLE if is_braked and planned_state is _S.LOST else planned_state
        change = _change(appliance, after)
        if change.before is not after and _move(session, appliance, after):
            changes.append(change)
    if is_braked and changes:
        logger.warning(
            "More than half of the %d appliances are silent together: the portal or its network "
            "may be at fault, so none is called lost until some are heard again.",
            len(fleet),
        )
    return changes


def _silence(appliance: Appliance, now: datetime, listening_since: datetime | None) -> timedelta:
    heard_at = appliance.last_seen_at or appliance.enrolled_at
    return now - max(heard_at, listening_since or heard_at)


def _is_braked(after: Sequence[ApplianceState]) -> bool:
    silent = sum(state in {_S.UNREACHABLE, _S.LOST} for state in after)
    return silent >= BRAKE_COUNT and silent > BRAKE_RATIO * len(after)


def _move(session: Session, appliance: Appliance, after: ApplianceState) -> bool:
    # A heartbeat that came in between has changed the state or last_seen_at: it wins.
    moved = session.execute(
        update(Appliance)
        .where(
            Appliance.id == appliance.id,
            Appliance.state == appliance.state,
            Appliance.last_seen_at.is_not_distinct_from(appliance.last_seen_at),
        )
        .values(state=after)
    )
    return bool(moved.rowcount)  # type: ignore[attr-defined] # an UPDATE gives a CursorResult


def _change(appliance: Appliance, after: ApplianceState) -> ApplianceChange:
    return ApplianceChange(
        appliance_id=appliance.id,
        tenant_id=appliance.tenant_id,
        name=appliance.name,
        before=appliance.state,
        after=after,
    )

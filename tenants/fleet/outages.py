"""The brake on mass outages: when much of the fleet vanishes together, the portal suspects itself.

While an outage is open nobody is called lost, so no job is placed anew that may well run on. It
opens when more than half of the appliances, and at least five, are silent beyond `unreachable`; it
ends when enough are heard again. Soon after its end the same outage opens again, so that a fleet
that comes and goes makes one outage and one alert. An operator who knows that the silent ones are
gone indeed releases the brake.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from tenants.audit import record
from tenants.models import FleetOutage, User
from tenants.permissions import Permission
from tenants.scope import Scope

logger = logging.getLogger(__name__)

# The brake: this many appliances and this share of the fleet fell silent together.
BRAKE_COUNT: Final = 5
BRAKE_RATIO: Final = 0.5
REOPENED_WITHIN: Final = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Silence:
    """How many of the fleet are silent beyond `unreachable`; those lost already count in neither.

    An appliance that was lost before the others fell silent has nothing to do with them.
    """

    silent_count: int
    fleet_count: int

    @property
    def is_suspect(self) -> bool:
        """Whether the portal or its network is the likelier culprit."""
        is_large = self.silent_count > BRAKE_RATIO * self.fleet_count
        return is_large and self.silent_count >= BRAKE_COUNT


def hold_brake(session: Session, silence: Silence, *, now: datetime) -> bool:
    """Open, keep or end the outage by what the sweep sees; return whether the brake holds."""
    outage = _open_outage(session)
    if not silence.is_suspect:
        if outage is not None:
            outage.ended_at = now
            logger.warning("The fleet is heard again: the brake is off.")
        return False
    outage = outage or _reopened(session, now=now) or _begun(session, silence, now=now)
    if silence.silent_count > outage.silent_count:
        outage.silent_count = silence.silent_count
        outage.fleet_count = silence.fleet_count
    return outage.released_at is None


def present_outage(session: Session) -> FleetOutage | None:
    """Return the outage for which the brake holds now."""
    outage = _open_outage(session)
    return outage if outage is not None and outage.released_at is None else None


def release_brake(session: Session, scope: Scope, *, now: datetime) -> FleetOutage:
    """Let the silent appliances be called lost: they are gone, and the portal is well.

    Raises:
        NotFoundError: the brake holds no more.
    """
    scope.require(Permission.OPERATE)
    outage = present_outage(session)
    if outage is None:
        raise NotFoundError("The brake does not hold: enough appliances are heard again.")
    outage.released_at = now
    outage.released_by = scope.user_id
    record(
        session, action="fleet_outage.released", target_kind="fleet_outage", target_id=outage.id,
        target_name=f"{outage.silent_count} of {outage.fleet_count} appliances", tenant_id=None,
        after={"released_at": now.isoformat()}, now=now,
    )  # fmt: skip
    session.flush()
    return outage


def untold_outage(session: Session) -> FleetOutage | None:
    """Return the outage that holds and that no operator was told of."""
    outage = present_outage(session)
    return outage if outage is not None and outage.told_at is None else None


def mark_told(session: Session, outage_id: str, *, now: datetime) -> bool:
    """Note that the operators are told; return False where somebody was first."""
    told = session.execute(
        update(FleetOutage)
        .where(FleetOutage.id == outage_id, FleetOutage.told_at.is_(None))
        .values(told_at=now)
    )
    return bool(told.rowcount)  # type: ignore[attr-defined] # an UPDATE gives a CursorResult


def operators(session: Session) -> list[User]:
    """Return who looks after the platform."""
    statement = select(User).where(User.is_operator, User.is_active).order_by(User.email)
    return list(session.scalars(statement))


def _open_outage(session: Session) -> FleetOutage | None:
    statement = select(FleetOutage).where(FleetOutage.ended_at.is_(None))
    return session.scalars(statement.order_by(FleetOutage.id.desc()).limit(1)).first()


def _reopened(session: Session, *, now: datetime) -> FleetOutage | None:
    # One that was released is over for good: what vanishes now is another matter.
    statement = select(FleetOutage).where(
        FleetOutage.ended_at >= now - REOPENED_WITHIN, FleetOutage.released_at.is_(None)
    )
    outage = session.scalars(statement.order_by(FleetOutage.id.desc()).limit(1)).first()
    if outage is not None:
        outage.ended_at = None
    return outage


def _begun(session: Session, silence: Silence, *, now: datetime) -> FleetOutage:
    logger.critical(
        "%d of %d appliances fell silent together: the portal or its network may be at fault, so "
        "none is called lost and no job is placed anew until some are heard again.",
        silence.silent_count, silence.fleet_count,
    )  # fmt: skip
    outage = FleetOutage(
        began_at=now, silent_count=silence.silent_count, fleet_count=silence.fleet_count
    )
    session.add(outage)
    session.flush()
    return outage

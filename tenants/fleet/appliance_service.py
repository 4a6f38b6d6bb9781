"""Whether appliances serve: drained, retired, taken back, revoked.

*Retired* is out of service with its history kept, and can be taken back; *revoked* is for good.
Each change is an event of its appliance.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from core.errors import ConflictError
from tenants.entry.agents import lock_appliance
from tenants.entry.roll import shut_out
from tenants.fleet.events import EventKind
from tenants.fleet.managed import managed_appliance, managed_appliances, tell_change
from tenants.models import Appliance, ApplianceState
from tenants.scope import Scope

_MOST_JOBS_NAMED = 5


def drain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Place no more jobs on an appliance; doing it twice keeps the first instant."""
    return drain_appliances(session, scope, [appliance_id], now=now)[0]


def undrain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Let jobs be placed on an appliance again."""
    return undrain_appliances(session, scope, [appliance_id], now=now)[0]


def drain_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, now: datetime
) -> list[Appliance]:
    """Place no more jobs on several appliances; one that is drained already stays as it is."""
    chosen = managed_appliances(session, scope, appliance_ids)
    for appliance in chosen:
        if appliance.drained_at is None:
            appliance.drained_at = now
            message = "Drained: it takes no new jobs."
            tell_change(session, appliance, EventKind.DRAINED, message, now=now)
    session.flush()
    return chosen


def undrain_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, now: datetime
) -> list[Appliance]:
    """Let jobs be placed on several appliances again."""
    chosen = managed_appliances(session, scope, appliance_ids)
    for appliance in chosen:
        if appliance.drained_at is not None:
            appliance.drained_at = None
            tell_change(session, appliance, EventKind.UNDRAINED, "It takes jobs again.", now=now)
    session.flush()
    return chosen


def retire_appliance(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    held_by: Sequence[str],
    now: datetime,
) -> Appliance:
    """Take an appliance out of service: its agent is refused, its history and its name are kept.

    Args:
        session: the database session.
        scope: who asks.
        appliance_id: which one.
        held_by: the names of the jobs that run there; see `jobqueue.retirement`.
        now: the present instant.

    Raises:
        ConflictError: jobs run there, or it was revoked.
    """
    managed_appliance(session, scope, appliance_id)
    appliance = lock_appliance(session, appliance_id)
    _require_not_revoked(appliance)
    if appliance.retired_at is not None:
        return appliance
    if held_by:
        raise ConflictError(_still_held(appliance, held_by), code="jobs_running")
    appliance.retired_at = now
    message = "Retired: its agent is not let in, and its history is kept."
    tell_change(session, appliance, EventKind.RETIRED, message, now=now)
    shut_out(session, appliance_id=appliance.id)
    return appliance


def reinstate_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Take a retired appliance back into service; its agent is let in again.

    Raises:
        ConflictError: it was revoked.
    """
    managed_appliance(session, scope, appliance_id)
    appliance = lock_appliance(session, appliance_id)
    _require_not_revoked(appliance)
    if appliance.retired_at is None:
        return appliance
    appliance.retired_at = None
    # Whatever it was when it went, it was silent since: it has to be heard first.
    appliance.state = ApplianceState.LOST
    tell_change(session, appliance, EventKind.REINSTATED, "Back in service.", now=now)
    shut_out(session, appliance_id=appliance.id)
    return appliance


def revoke_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Shut an appliance out for good: its agent's secret is refused and its jobs count as lost."""
    appliance = managed_appliance(session, scope, appliance_id)
    if appliance.revoked_at is None:
        appliance.revoked_at = now
        appliance.state = ApplianceState.LOST
        message = "Revoked for good: its agent is refused."
        tell_change(session, appliance, EventKind.REVOKED, message, now=now)
        shut_out(session, appliance_id=appliance.id)
    return appliance


def _require_not_revoked(appliance: Appliance) -> None:
    if appliance.revoked_at is not None:
        raise ConflictError(
            f"The appliance {appliance.name!r} was revoked for good. Enrol its host as a new one.",
            code="appliance_revoked",
        )


def _still_held(appliance: Appliance, jobs: Sequence[str]) -> str:
    named = ", ".join(repr(name) for name in jobs[:_MOST_JOBS_NAMED])
    rest = len(jobs) - _MOST_JOBS_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return (
        f"Jobs run on {appliance.name!r}: {named}{more}. Drain the appliance and let them end, or "
        "stop them; then retire it."
    )

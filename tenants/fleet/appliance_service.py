"""Admins drain, retire, reinstate and revoke appliances; each change is an event.

A *retired* appliance is out of service and can be reinstated; a *revoked* one can't. The nodes of a
cluster leave with its connector, and come back with its first heartbeat.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from core.errors import ConflictError
from tenants.fleet.agents import block_appliance, lock_appliance
from tenants.fleet.appliances import add_change_event, managed_appliance, managed_appliances
from tenants.fleet.events import EventKind
from tenants.fleet.nodes import retire_nodes_of
from tenants.fleet.states import WITHOUT_AGENT, check_transition
from tenants.models import Appliance, ApplianceState
from tenants.scope import Scope

_MAX_JOBS_LISTED = 5


def drain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Place no new jobs on an appliance."""
    return drain_appliances(session, scope, [appliance_id], now=now)[0]


def undrain_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Place jobs on an appliance again."""
    return undrain_appliances(session, scope, [appliance_id], now=now)[0]


def drain_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, now: datetime
) -> list[Appliance]:
    """Place no new jobs on several appliances; drained ones do not change."""
    return _set_drained(session, scope, appliance_ids, is_drained=True, now=now)


def undrain_appliances(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, now: datetime
) -> list[Appliance]:
    """Place jobs on several appliances again."""
    return _set_drained(session, scope, appliance_ids, is_drained=False, now=now)


def _set_drained(
    session: Session, scope: Scope, appliance_ids: Sequence[str], *, is_drained: bool, now: datetime
) -> list[Appliance]:
    kind, message = EventKind.UNDRAINED, "Undrained: it accepts jobs again."
    if is_drained:
        kind, message = EventKind.DRAINED, "Drained: it accepts no new jobs."
    appliances = managed_appliances(session, scope, appliance_ids)
    for appliance in appliances:
        if (appliance.drained_at is not None) is not is_drained:
            appliance.drained_at = now if is_drained else None
            appliance.drain_deadline_at = None
            add_change_event(session, appliance, kind, message, now=now)
    session.flush()
    return appliances


def retire_appliance(
    session: Session, scope: Scope, appliance_id: str, *, running_jobs: Sequence[str], now: datetime
) -> Appliance:
    """Take an appliance out of service: its agent is refused, its history and name are retained.

    Raises:
        ConflictError: jobs run on it, or it was revoked.
    """
    appliance = _locked(session, scope, appliance_id)
    if appliance.retired_at is not None:
        return appliance
    if running_jobs:
        named = ", ".join(repr(name) for name in running_jobs[:_MAX_JOBS_LISTED])
        unlisted_count = len(running_jobs) - _MAX_JOBS_LISTED
        suffix = f" and {unlisted_count} more" if unlisted_count > 0 else ""
        raise ConflictError(
            f"Jobs run on {appliance.name!r}: {named}{suffix}. Drain the appliance and wait until "
            "they end, or stop them. Then retire it.",
            code="jobs_running",
        )
    appliance.retired_at = now
    message = "Retired: its agent is refused. Its history is retained."
    add_change_event(session, appliance, EventKind.RETIRED, message, now=now)
    retire_nodes_of(session, appliance, now=now)
    block_appliance(session, appliance_id=appliance.id)
    return appliance


def reinstate_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Put a retired appliance back into service.

    Raises:
        ConflictError: it was revoked.
    """
    appliance = _locked(session, scope, appliance_id)
    if appliance.retired_at is None:
        return appliance
    appliance.retired_at = None
    # It sent no heartbeats, or samples, while it was retired.
    is_agentless = appliance.state in WITHOUT_AGENT
    target = ApplianceState.SILENT if is_agentless else ApplianceState.LOST
    appliance.state = check_transition(appliance.state, target)
    add_change_event(session, appliance, EventKind.REINSTATED, "Back in service.", now=now)
    block_appliance(session, appliance_id=appliance.id)
    return appliance


def revoke_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Revoke an appliance permanently: its agent is refused and its jobs are lost."""
    appliance = managed_appliance(session, scope, appliance_id)
    if appliance.revoked_at is None:
        appliance.revoked_at = now
        appliance.state = check_transition(appliance.state, ApplianceState.LOST)
        message = "Revoked permanently: its agent is refused."
        add_change_event(session, appliance, EventKind.REVOKED, message, now=now)
        retire_nodes_of(session, appliance, now=now)
        block_appliance(session, appliance_id=appliance.id)
    return appliance


def _locked(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    managed_appliance(session, scope, appliance_id)
    appliance = lock_appliance(session, appliance_id)
    if appliance.revoked_at is not None:
        raise ConflictError(
            f"The appliance {appliance.name!r} was revoked. Enroll its host as a new appliance.",
            code="appliance_revoked",
        )
    return appliance

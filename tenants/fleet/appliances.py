"""Appliances: all of it in one place for callers.

How they join is in `tenants.entry.enrolment`. Here beside it: what their heartbeats tell in
`heartbeats`, how their silence is judged in `liveness`, lists in `appliance_list`, what people
call them in `appliance_changes`, and whether they serve in `appliance_service`.
"""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from tenants.entry.enrolment import authenticate_agent, create_enrolment_token, enrol_appliance
from tenants.fleet.appliance_changes import (
    ApplianceChanges,
    change_appliance,
    label_appliances,
)
from tenants.fleet.appliance_list import (
    ApplianceFilter,
    FilterChoices,
    filter_choices,
    list_appliances,
)
from tenants.fleet.appliance_service import (
    drain_appliance,
    drain_appliances,
    reinstate_appliance,
    retire_appliance,
    revoke_appliance,
    undrain_appliance,
    undrain_appliances,
)
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.liveness import ApplianceChange, sweep_appliances
from tenants.fleet.managed import managed_appliances
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

__all__ = [
    "ApplianceChange",
    "ApplianceChanges",
    "ApplianceFilter",
    "FilterChoices",
    "appliance_names",
    "authenticate_agent",
    "bump_generation",
    "change_appliance",
    "create_enrolment_token",
    "drain_appliance",
    "drain_appliances",
    "enrol_appliance",
    "filter_choices",
    "get_appliance",
    "label_appliances",
    "list_appliances",
    "managed_appliances",
    "record_heartbeat",
    "reinstate_appliance",
    "retire_appliance",
    "revoke_appliance",
    "sweep_appliances",
    "undrain_appliance",
    "undrain_appliances",
]


def get_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Return an appliance; another tenant's is as good as missing."""
    scope.require(Permission.VIEW)
    return scope.get(session, Appliance, appliance_id, kind="appliance")


def appliance_names(session: Session, tenants: tuple[str, ...] | None) -> dict[str, str]:
    """Return id to name of these tenants' appliances (None: everyone's), those gone included."""
    statement = select(Appliance.id, Appliance.name)
    if tenants is not None:
        statement = statement.where(Appliance.tenant_id.in_(tenants))
    return {row[0]: row[1] for row in session.execute(statement)}


def bump_generation(session: Session, appliance_id: str) -> None:
    """Count a change of what should run on an appliance, so that its agent asks again."""
    bumped = session.execute(
        update(Appliance)
        .where(Appliance.id == appliance_id)
        .values(desired_generation=Appliance.desired_generation + 1)
    )
    if not bumped.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
        raise NotFoundError.of("appliance", appliance_id)

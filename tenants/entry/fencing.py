"""Fencing: an identity that two agents use at once is shut out until an admin has looked at it.

It happens when a disk is cloned or a backup is started beside its original. It shows in two ways: a
certificate is used long after a newer one took its place, and the *instances* (runs of an agent,
each with an id of its own) that send heartbeats take turns: one that was followed by another comes
back, which a restart never does.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from tenants.entry.agents import lock_appliance
from tenants.entry.roll import shut_out
from tenants.fleet.events import add_event
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

REMEMBERED_INSTANCES = 20


def fence_appliance(session: Session, appliance: Appliance, *, reason: str, now: datetime) -> None:
    """Shut out every agent that has this appliance's identity."""
    if appliance.fenced_at is not None:
        return
    appliance.fenced_at = now
    add_event(session, appliance, "fenced", f"Fenced: {reason}", now=now)
    shut_out(session, appliance_id=appliance.id)


def lift_fence(session: Session, scope: Scope, appliance_id: str, *, now: datetime) -> Appliance:
    """Let the appliance's agent in again, after one of the two was stopped or enrolled anew."""
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    if appliance.fenced_at is not None:
        appliance.fenced_at = None
        forget_instances(appliance)
        add_event(session, appliance, "fence_lifted", "The fence was lifted.", now=now)
        session.flush()
    return appliance


def forget_instances(appliance: Appliance) -> None:
    """Forget which runs of the agent were heard: the next one is the first."""
    appliance.instance_id = None
    appliance.past_instances = None


def take_over(session: Session, appliance_id: str, instance_id: str, *, now: datetime) -> bool:
    """Take an instance for the present one; return False where it is one of two at a time."""
    appliance = lock_appliance(session, appliance_id)
    if appliance.fenced_at is not None:
        return False
    present, past = appliance.instance_id, appliance.past_instances or []
    if present == instance_id:
        return True
    if instance_id in past:
        fence_appliance(session, appliance, reason=TWO_INSTANCES, now=now)
        return False
    if present is not None:
        appliance.past_instances = [*past, present][-REMEMBERED_INSTANCES:]
    appliance.instance_id = instance_id
    session.flush()
    return True


TWO_INSTANCES = "two agents sent heartbeats by turns with the identity of this appliance."
OLD_CERTIFICATE = (
    "a certificate was used after a newer one had taken its place, so two agents have the identity "
    "of this appliance."
)

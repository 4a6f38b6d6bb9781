"""Retiring an appliance: only once no job runs on it."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.dispatch import lock_tenant
from jobqueue.models import Attempt, Job
from jobqueue.states import HOLDING
from tenants.fleet.appliances import get_appliance, retire_appliance
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope


def retire(session: Session, scope: Scope, appliance_id: str, *, now: datetime) -> Appliance:
    """Take an appliance out of service; meanwhile no job is placed on it.

    Raises:
        ConflictError: names the jobs that run there.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = get_appliance(session, scope, appliance_id)
    lock_tenant(session, appliance.tenant_id)
    held_by = jobs_held(session, appliance.id)
    return retire_appliance(session, scope, appliance_id, held_by=held_by, now=now)


def jobs_held(session: Session, appliance_id: str) -> list[str]:
    """Return the names of the jobs that run on an appliance, the oldest first."""
    statement = (
        select(Job.name)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.appliance_id == appliance_id, Attempt.state.in_(HOLDING))
        .order_by(Job.id)
    )
    return list(session.scalars(statement))

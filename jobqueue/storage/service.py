"""Reports of the appliances' container storage, cleanups that users start, and what they see."""

from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import insert_missing
from core.errors import ConflictError
from core.quantities import format_size
from jobqueue.models import Attempt, Job
from jobqueue.rentals import images_of_customers
from jobqueue.states import ALLOCATED_STATES, AttemptState
from jobqueue.storage.hidden_images import shown_report
from jobqueue.storage.models import ContainerStorage
from jobqueue.storage.planning import Plan, plan_cleanup
from jobqueue.storage.policies import CleanupPolicy, policy_for
from protocol.storage import CleanupOrder, CleanupResult, StorageReport
from tenants.fleet.appliances import bump_generation, get_appliance
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageView:
    """The container storage of an appliance, and what the next cleanup deletes.

    `policy_site` is the site that the policy is for; "" is for all without one of their own.
    """

    appliance: Appliance
    report: StorageReport | None
    reported_at: datetime | None
    requested_at: datetime | None
    cleanup: CleanupResult | None
    policy: CleanupPolicy
    policy_site: str
    plan: Plan


def read_storage(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> StorageView:
    """Return the container storage of an appliance in the scope."""
    appliance = get_appliance(session, scope, appliance_id)
    row = session.get(ContainerStorage, appliance.id)
    policy, site = policy_for(session, appliance.tenant_id, appliance.site)
    report = msgspec.convert(row.report, StorageReport) if row and row.reported_at else None
    wanted = _wanted(session, appliance.id)
    return StorageView(
        appliance=appliance,
        report=report,
        reported_at=row.reported_at if row else None,
        requested_at=row.requested_at if row else None,
        cleanup=msgspec.convert(row.cleanup, CleanupResult) if row and row.cleanup else None,
        policy=policy,
        policy_site=site,
        plan=plan_cleanup(report or StorageReport(), policy, wanted=wanted, now=now),
    )


def start_cleanup(session: Session, scope: Scope, appliance_id: str, *, now: datetime) -> None:
    """Let an appliance report its storage now, and delete what its policy says.

    Raises:
        ConflictError: its agent reports no container storage.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = get_appliance(session, scope, appliance_id)
    row = session.get(ContainerStorage, appliance.id, with_for_update=True)
    if row is None:
        raise ConflictError(
            f"{appliance.name} reports no container storage. It needs an agent of this version "
            "with the Docker executor.",
            code="no_container_storage",
        )
    if row.requested_at is None:
        row.requested_at = now
        row.generation += 1
        bump_generation(session, appliance.id)


def record_storage(
    session: Session, appliance_id: str, report: StorageReport, *, now: datetime
) -> CleanupOrder:
    """Store an appliance's report; return what it is to delete."""
    appliance = session.get_one(Appliance, appliance_id)
    if session.get(ContainerStorage, appliance_id) is None:
        empty = {"appliance_id": appliance_id, "tenant_id": appliance.tenant_id}
        insert_missing(session, ContainerStorage, empty)
    row = session.get_one(ContainerStorage, appliance_id, with_for_update=True)
    shown = shown_report(
        report,
        msgspec.convert(row.report or {}, StorageReport),
        appliance_id=appliance_id,
        images=images_of_customers(session, appliance_id, now=now),
    )
    row.report = msgspec.to_builtins(msgspec.structs.replace(shown, cleanup=None))
    row.reported_at = now
    if shown.cleanup is not None:
        row.cleanup = msgspec.to_builtins(shown.cleanup)
        add_event(session, appliance, EventKind.CLEANED_UP, _summary(shown.cleanup), now=now)
    policy, _ = policy_for(session, appliance.tenant_id, appliance.site)
    is_due = policy.is_automatic or row.requested_at is not None
    row.requested_at = None
    if not is_due:
        return CleanupOrder()
    wanted = _wanted(session, appliance_id)
    return plan_cleanup(report, policy, wanted=wanted, now=now).order()


def _wanted(session: Session, appliance_id: str) -> set[str]:
    """Return the images of the jobs that run on an appliance or wait for it."""
    states = (AttemptState.BOUND, *ALLOCATED_STATES)
    images = select(Job.image).join(Attempt, Attempt.job_id == Job.id).distinct()
    return set(
        session.scalars(
            images.where(Attempt.appliance_id == appliance_id, Attempt.state.in_(states))
        )
    )


def _summary(result: CleanupResult) -> str:
    counts = [(result.images, "image"), (result.containers, "container")]
    deleted = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    text = f"Deleted {' and '.join(deleted) or 'nothing'}, freed {format_size(result.freed_bytes)}."
    return f"{text} {result.errors[0]}" if result.errors else text

"""Reports of the appliances' container storage, cleanups that users start, and what they see.

The report of a rented appliance doesn't name the images of customers' jobs. An image is hidden from
the first report with it that follows a customer's attempt, and stays so as long as it is there. One
that was there before is the provider's.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import insert_missing
from core.errors import ConflictError
from core.quantities import format_size
from jobqueue.models import Attempt, Job
from jobqueue.rentals import HIDDEN_IMAGE, images_of_customers
from jobqueue.states import ALLOCATED_STATES, AttemptState
from jobqueue.storage.models import ContainerStorage
from jobqueue.storage.policies import CleanupPolicy, Plan, plan_cleanup, policy_for
from protocol.storage import (
    CleanupOrder,
    CleanupResult,
    StorageReport,
    StoredImage,
    full_image_name,
)
from tenants.fleet.appliances import bump_generation, get_appliance
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

_HIDDEN_ERROR = "An image of a rented job could not be deleted."


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
    shown = _shown_report(
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


def _shown_report(
    report: StorageReport, before: StorageReport, *, appliance_id: str, images: Collection[str]
) -> StorageReport:
    """Return a report as it is stored and shown.

    Args:
        report: the new one.
        before: the one before, as it was stored.
        appliance_id: the appliance.
        images: those of customers' jobs on it, of late.
    """
    hidden_before = {image.image_id for image in before.images if image.names == [HIDDEN_IMAGE]}
    if not images and not hidden_before:
        return report
    shown_before = {image.image_id for image in before.images} - hidden_before
    names = {full_image_name(image) for image in images}
    hidden: list[StoredImage] = []
    shown: list[StoredImage] = []
    for image in report.images:
        alias = _alias(appliance_id, image.image_id)
        is_new = image.image_id not in shown_before
        is_customers = is_new and names & {full_image_name(name) for name in image.names}
        if alias in hidden_before or is_customers:
            hidden.append(image)
            shown.append(msgspec.structs.replace(image, image_id=alias, names=[HIDDEN_IMAGE]))
        else:
            shown.append(image)
    words = {*images, *(word for image in hidden for word in (image.image_id, *image.names))}
    cleanup = report.cleanup
    if cleanup is not None:
        errors = [
            _HIDDEN_ERROR if any(word in error for word in words) else error
            for error in cleanup.errors
        ]
        cleanup = msgspec.structs.replace(cleanup, errors=errors)
    return msgspec.structs.replace(report, images=shown, cleanup=cleanup)


def _alias(appliance_id: str, image_id: str) -> str:
    """Return the id of a hidden image: its own is that of a public image, or says that of one."""
    return hashlib.sha256(f"{appliance_id} {image_id}".encode()).hexdigest()

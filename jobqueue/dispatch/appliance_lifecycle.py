"""Appliances that lose their jobs: lost, retired, drained ones, and those whose rental ends.

A lost attempt is final: its job ends as `lost`, or is queued again if it may be retried.

A drained appliance gets no new jobs. Without a time to wait, those that run go on to their end.
With one, the attempts that still run when it is over are stopped, and their jobs are queued again
at their old place; that doesn't count as a retry. Jobs that only wait for the appliance move at the
next placement.

Attempts on rented appliances stop with their contract, and are lost with their provider. While a
contract only lets no new jobs start, those that run go on.

A bulk action changes every appliance as it would be changed alone. If one can't be changed, the
caller's transaction is rolled back, and the error has the reason by the appliance's id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import and_, case, not_, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, VedetteError
from jobqueue.dispatch.desired_state import allocated_attempts, stoppable_attempts
from jobqueue.dispatch.dispatcher import lock_tenant
from jobqueue.jobs.retries import end_job
from jobqueue.jobs.transitions import move_attempt, move_job, record_event, stop_attempts
from jobqueue.models import Attempt, Job
from jobqueue.rentals import RENTED_JOB, ListedJob, rented_job
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState, Reason
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance, label_appliances
from tenants.fleet.appliance_service import (
    drain_appliance,
    reinstate_appliance,
    retire_appliance,
    undrain_appliance,
)
from tenants.fleet.appliances import bump_generation, get_appliance, managed_appliances
from tenants.fleet.states import effective_status_of, in_service
from tenants.models import Appliance, ApplianceState, Tenant, TenantState
from tenants.models.rentals import Grant
from tenants.permissions import Permission
from tenants.scope import Scope

# That a drained appliance waits for its jobs.
MAX_WAIT = timedelta(days=30)


def sweep_attempts(session: Session, *, now: datetime) -> None:
    """Mark attempts on lost, retired and revoked appliances as lost, and flag unreachable ones.

    The flag is cleared once the appliance reports again. A rental ends when either side's tenant is
    suspended or closed.
    """
    inactive = select(Tenant.id).where(Tenant.state != TenantState.ACTIVE)
    is_rented = Attempt.contract_id.is_not(None)
    has_ended = or_(Attempt.tenant_id.in_(inactive), Appliance.tenant_id.in_(inactive))
    for attempt in allocated_attempts(session, and_(is_rented, has_ended)):
        message = f"{attempt.place_name} can no longer be used: a side of its contract is blocked."
        _end_lost(session, attempt, message, now=now)
    is_lost = or_(Appliance.state == ApplianceState.LOST, not_(in_service()))
    for attempt in allocated_attempts(session, is_lost):
        _lose(session, attempt, now=now)
    is_flagged = Attempt.reason == Reason.APPLIANCE_UNREACHABLE
    is_silent = Appliance.state == ApplianceState.UNREACHABLE
    for attempt in allocated_attempts(session, and_(is_silent, not_(is_flagged))):
        message = f"{attempt.place_name} is unreachable; the job's current state is unknown."
        _flag(session, attempt, Reason.APPLIANCE_UNREACHABLE, message, event=message, now=now)
    reporting = Appliance.state.in_((ApplianceState.ONLINE, ApplianceState.STALE))
    for attempt in allocated_attempts(session, and_(reporting, is_flagged)):
        event = f"{attempt.place_name} is reporting again."
        _flag(session, attempt, Reason.NONE, "", event=event, now=now)


def stop_unrented(session: Session, *, now: datetime) -> int:
    """Stop the attempts on rented appliances whose contract has ended; return how many."""
    usable = select(Grant.contract_id).where(
        Grant.contract_id == Attempt.contract_id, or_(Grant.ends_at.is_(None), Grant.ends_at > now)
    )
    # An index has the rented ones; "is not null" would scan all attempts.
    ended = select(Attempt.id).where(
        Attempt.provider_id > "",
        Attempt.state.in_(ALLOCATED_STATES),
        Attempt.stop_reason.is_(None),
        ~usable.exists(),
    )
    idents = session.scalars(ended).all()
    attempts = stoppable_attempts(session, Attempt.id.in_(idents)) if idents else []
    return stop_attempts(session, attempts, Reason.CONTRACT_ENDED, _contract_ended, now=now)


def _contract_ended(attempt: Attempt) -> str:
    offer = attempt.placement.get("offer", "")
    return f"Stopping to move: the contract about {offer or 'its appliance'} has ended."


def lose_attempts_at(session: Session, provider_id: str, *, now: datetime) -> int:
    """End what others run on the appliances of a tenant, which is removed; return how many."""
    message = "The provider of the rented appliance is gone; the job's state is unknown."
    values: dict[str, Any] = {"reason": Reason.APPLIANCE_LOST, "message": message}
    values["finished_at"] = now
    lost = [
        attempt
        for attempt in allocated_attempts(session, Attempt.provider_id == provider_id)
        if move_attempt(session, attempt.id, AttemptState.LOST, expected={attempt.state}, **values)
    ]
    for attempt in lost:
        end_job(session, attempt, JobState.LOST, values, now=now)
    return len(lost)


def retire_idle_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Take an appliance out of service; no job is placed on it meanwhile.

    Raises:
        ConflictError: jobs are running on it; the message names them.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    appliance = get_appliance(session, scope, appliance_id)
    lock_tenant(session, appliance.tenant_id)
    # Other tenants place jobs on it, too, if it is rented out: they lock it.
    session.execute(select(Appliance.id).where(Appliance.id == appliance.id).with_for_update())
    jobs = running_job_names(session, appliance.id)
    return retire_appliance(session, scope, appliance_id, running_jobs=jobs, now=now)


def running_job_names(session: Session, appliance_id: str) -> list[str]:
    """Return the names of the jobs with resources on an appliance, the oldest first.

    Jobs of customers who rent it have none.
    """
    statement = (
        select(case((Attempt.contract_id.is_(None), Job.name), else_=RENTED_JOB))
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.appliance_id == appliance_id, Attempt.state.in_(ALLOCATED_STATES))
        .order_by(Job.id)
    )
    return list(session.scalars(statement))


def _lose(session: Session, attempt: Attempt, *, now: datetime) -> None:
    message = f"{attempt.place_name} is lost; the job's state is unknown. Submit the job again."
    status = effective_status_of(attempt.appliance)
    if not status.is_in_service:
        message = f"{attempt.place_name} was {status.value} during this job. Submit it again."
    _end_lost(session, attempt, message, now=now)


def _end_lost(session: Session, attempt: Attempt, message: str, *, now: datetime) -> None:
    values: dict[str, Any] = {"reason": Reason.APPLIANCE_LOST, "message": message}
    values["finished_at"] = now
    if move_attempt(session, attempt.id, AttemptState.LOST, expected={attempt.state}, **values):
        # If the appliance comes back, its agent sees that the attempt is gone and stops it.
        bump_generation(session, attempt.appliance_id)
        end_job(session, attempt, JobState.LOST, values, now=now)


def _flag(
    session: Session, attempt: Attempt, reason: Reason, message: str, *, event: str, now: datetime
) -> None:
    state, values = attempt.state, {"reason": reason, "message": message}
    if move_attempt(session, attempt.id, state, expected={state}, **values):
        job_state = JobState(state.value)
        move_job(session, attempt.job_id, job_state, expected={job_state}, **values)
        record_event(session, attempt.job, message=event, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """The progress of draining an appliance.

    Attributes:
        deadline_at: when the jobs that are left move; None if they run to their end.
        job_count: how many jobs ran when it was drained.
        jobs: those of them that still run.
    """

    drained_at: datetime
    deadline_at: datetime | None
    job_count: int
    jobs: Sequence[ListedJob]

    @property
    def is_done(self) -> bool:
        """Return whether no job runs any more."""
        return not self.jobs

    @property
    def jobs_left(self) -> int:
        """Return how many jobs still run."""
        return len(self.jobs)


def start_drain(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    wait: timedelta | None = None,
    now: datetime,
) -> Appliance:
    """Drain an appliance, or change how long a drained one waits for its jobs.

    Callers check that `wait` is between 0 and `MAX_WAIT`.
    """
    appliance = drain_appliance(session, scope, appliance_id, now=now)
    appliance.drain_deadline_at = None if wait is None else now + wait
    return appliance


def drain_progress(session: Session, appliance: Appliance) -> DrainProgress | None:
    """Return how far the draining of an appliance is; None if it isn't drained."""
    drained_at = appliance.drained_at
    if drained_at is None:
        return None
    on_it = and_(Attempt.job_id == Job.id, Attempt.appliance_id == appliance.id)
    ran = (
        select(Job.id)
        .join(Attempt, on_it)
        .where(
            Attempt.assigned_at <= drained_at,
            or_(Attempt.finished_at.is_(None), Attempt.finished_at >= drained_at),
        )
    )
    allocated = select(Attempt).where(
        Attempt.appliance_id == appliance.id, Attempt.state.in_(ALLOCATED_STATES)
    )
    # An operator who has the appliance's page sees what its provider does.
    jobs = [
        rented_job(attempt) if attempt.contract_id else attempt.job
        for attempt in session.scalars(allocated.order_by(Attempt.job_id)).unique()
    ]
    return DrainProgress(
        drained_at=drained_at,
        deadline_at=appliance.drain_deadline_at,
        job_count=len({*session.scalars(ran), *(job.id for job in jobs)}),
        jobs=jobs,
    )


def move_overdue(session: Session, *, now: datetime) -> int:
    """Stop the attempts on appliances whose time to wait is over; return how many."""
    is_overdue = and_(Appliance.drained_at.is_not(None), Appliance.drain_deadline_at <= now)
    return stop_attempts(
        session,
        stoppable_attempts(session, is_overdue),
        Reason.APPLIANCE_DRAINED,
        lambda attempt: f"Stopping to move: {attempt.place_name} is drained.",
        now=now,
    )


class BulkAction(StrEnum):
    """An action on several appliances."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    LABEL = "label"
    MOVE = "move"
    RETIRE = "retire"
    REINSTATE = "reinstate"


class BulkRefusedError(ConflictError):
    """Some of the appliances can't be changed, so none was."""

    default_code = "bulk_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """An action and the appliances to apply it to; duplicates are ignored.

    `labels` is for `label`: None removes a label. `site` and `region` are for `move`: None leaves
    them unchanged. `wait_seconds` is for `drain`, as in `start_drain`.
    """

    appliance_ids: Sequence[str]
    action: BulkAction
    labels: Mapping[str, str | None] = field(default_factory=dict)
    site: str | None = None
    region: str | None = None
    wait_seconds: float | None = None


def change_all(
    session: Session, scope: Scope, request: BulkRequest, *, now: datetime
) -> list[Appliance]:
    """Apply an action to every appliance of a request, or to none; return them in its order.

    Raises:
        InvalidInputError: the action lacks its parameters or has another action's.
        NotFoundError: lists the ids that don't exist; nothing was changed.
        BulkRefusedError: has the reasons by id; roll the transaction back.
    """
    _check(request)
    ids = list(dict.fromkeys(request.appliance_ids))
    managed_appliances(session, scope, ids)
    change = _change_of(request)
    changed: list[Appliance] = []
    refused: dict[str, VedetteError] = {}
    for ident in ids:
        try:
            changed.append(change(session, scope, ident, now=now))
        except (ConflictError, InvalidInputError) as error:
            refused[ident] = error
    if refused:
        first = next(iter(refused.values()))
        raise BulkRefusedError(
            f"{len(refused)} of {len(ids)} appliances can't be changed, so none was. The first "
            f"reason: {first.message}",
            errors={ident: [error.message] for ident, error in refused.items()},
        )
    return changed


def _check(request: BulkRequest) -> None:
    is_label, is_move = request.action is BulkAction.LABEL, request.action is BulkAction.MOVE
    has_place = request.site is not None or request.region is not None
    errors: dict[str, list[str]] = {}
    if is_label and not request.labels:
        errors["labels"] = ["Enter labels for the action 'label'."]
    if request.labels and not is_label:
        errors["labels"] = ["Labels are for the action 'label' only."]
    if is_move and not has_place:
        errors["site"] = ["Enter a site or a region for the action 'move'."]
    if has_place and not is_move:
        errors["site"] = ["Site and region are for the action 'move' only."]
    if request.wait_seconds is not None and request.action is not BulkAction.DRAIN:
        errors["wait_seconds"] = ["A time to wait is for the action 'drain' only."]
    if errors:
        raise InvalidInputError(
            " ".join(messages[0] for messages in errors.values()), errors=errors
        )


def _change_of(request: BulkRequest) -> Callable[..., Appliance]:
    if request.action is BulkAction.LABEL:
        added = {key: value for key, value in request.labels.items() if value is not None}
        removed = [key for key in request.labels if key not in added]
        return lambda session, scope, ident, *, now: label_appliances(
            session, scope, [ident], added=added, removed=removed, now=now
        )[0]
    if request.action is BulkAction.MOVE:
        changes = ApplianceChanges(site=request.site, region=request.region)
        return lambda session, scope, ident, *, now: change_appliance(
            session, scope, ident, changes, now=now
        )
    if request.action is BulkAction.DRAIN and request.wait_seconds is not None:
        return partial(start_drain, wait=timedelta(seconds=request.wait_seconds))
    return _SIMPLE[request.action]


_SIMPLE: Mapping[BulkAction, Callable[..., Appliance]] = {
    BulkAction.DRAIN: start_drain,
    BulkAction.UNDRAIN: undrain_appliance,
    BulkAction.RETIRE: retire_idle_appliance,
    BulkAction.REINSTATE: reinstate_appliance,
}

"""Quarantine: an appliance on which jobs fail to start gets no jobs until one can start there.

An attempt that fails to start through no fault of its job ends at once, so its appliance is free
again, and placement would send it the whole queue. Such failures of `JOBS_TO_QUARANTINE` jobs
within `WINDOW` quarantine the appliance. A failed pull counts only where others don't fail to pull,
as the registry is the cause otherwise.

It is released when a container runs there: that of a *probe*, which the agent starts when the
portal orders it, or, where the agent can't, that of a *trial*: a waiting job that no other
appliance can start, one at a time. The pauses between them double. An admin may release it, too.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.errors import ConflictError
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, Reason
from protocol.attempts import ProbeOrder, ProbeResult
from tenants.fleet.agents import lock_appliance
from tenants.fleet.appliances import (
    add_change_event,
    bump_generation,
    managed_appliance,
    read_inventory,
)
from tenants.fleet.events import EventKind
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import Appliance
from tenants.scope import Scope

WINDOW = timedelta(minutes=10)
JOBS_TO_QUARANTINE = 2
FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(minutes=10)
# The failures that any job may meet on an appliance. Its command never ran.
START_FAULTS = (Reason.START_FAILED, Reason.IMAGE_PULL_FAILED)
_MAX_REASON_LENGTH = 500


def is_start_fault(attempt: Attempt) -> bool:
    """Return whether an attempt ended before its command ran, through no fault of its job."""
    reasons = {*START_FAULTS, Reason.GPU_SLICE_FAILED}
    return attempt.reason in reasons and attempt.started_at is None


def note_outcome(session: Session, attempt: Attempt, *, now: datetime) -> None:
    """Quarantine the appliance of an attempt that failed to start, or release it if one started.

    A slice that can't be made says nothing about whole GPUs, nor a node about its cluster.
    """
    if attempt.is_on_cluster:
        return
    is_fault = is_start_fault(attempt) and attempt.reason in START_FAULTS
    if is_fault and not _is_pull_of_customer(attempt):
        _note_failure(session, attempt, now=now)
    elif attempt.started_at is not None and attempt.appliance.quarantined_at is not None:
        appliance = lock_appliance(session, attempt.appliance_id)
        began_at = appliance.quarantined_at
        if began_at and attempt.assigned_at and attempt.assigned_at > began_at:
            job = "A rented job" if attempt.contract_id else f"The job {attempt.job.name!r}"
            _release(session, appliance, f"{job} has started.", now=now)


def _is_pull_of_customer(attempt: Attempt) -> bool:
    """Return whether a failure is that of a customer's pull: its registry is not the provider's."""
    is_pull = attempt.reason is Reason.IMAGE_PULL_FAILED
    return is_pull and attempt.contract_id is not None


def apply_probe(session: Session, appliance_id: str, result: ProbeResult, *, now: datetime) -> None:
    """Release an appliance whose probe ran, or wait for the next one; old results are ignored."""
    appliance = lock_appliance(session, appliance_id)
    is_current = result.number == appliance.probe_number
    if appliance.quarantined_at is None or not is_current or appliance.probe_at is not None:
        return
    if not result.problem:
        _release(session, appliance, "A probe container has run.", now=now)
        return
    appliance.quarantine_reason = _shorten(f"The last probe failed: {result.problem}")
    appliance.probe_at = now + _pause(appliance, now)


def order_probes(session: Session, *, now: datetime) -> int:
    """Order the probes that are due, of agents that can run them; return how many."""
    due = select(Appliance.id).where(
        in_service(), Appliance.quarantined_at.is_not(None), Appliance.probe_at <= now
    )
    ordered = 0
    for appliance_id in session.scalars(due).all():
        appliance = lock_appliance(session, appliance_id)
        if appliance.probe_at is not None and read_inventory(appliance).can_probe:
            _order_probe(session, appliance)
            ordered += 1
    return ordered


def probe_order(session: Session, appliance_id: str) -> ProbeOrder | None:
    """Return the probe that the agent of a quarantined appliance should run, if any."""
    quarantined = select(Appliance).where(
        Appliance.id == appliance_id,
        Appliance.quarantined_at.is_not(None),
        Appliance.probe_at.is_(None),
    )
    appliance = session.scalars(quarantined).one_or_none()
    if appliance is None or appliance.quarantined_at is None:
        return None
    failures = _failures(session, appliance_id, since=appliance.quarantined_at - WINDOW)
    # GPUs may have been replaced since.
    uuids = {gpu.uuid for gpu in read_inventory(appliance).gpus}
    usable = (uuids.intersection(attempt.gpu_uuids) for attempt in failures)
    pulls = [
        attempt.job.image
        for attempt in failures
        if attempt.reason is Reason.IMAGE_PULL_FAILED and attempt.contract_id is None
    ]
    return ProbeOrder(
        number=appliance.probe_number,
        gpu_uuids=sorted(next(filter(None, usable), ())),
        image=pulls[0] if pulls and len(pulls) == len(failures) else "",
    )


def release_appliance(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> Appliance:
    """Release a quarantined appliance by hand.

    Raises:
        ConflictError: it is not quarantined.
    """
    managed_appliance(session, scope, appliance_id)
    appliance = lock_appliance(session, appliance_id)
    if appliance.quarantined_at is None:
        raise ConflictError(f"{appliance.name} is not quarantined.", code="not_quarantined")
    _release(session, appliance, "Released by hand.", now=now)
    return appliance


def _note_failure(session: Session, attempt: Attempt, *, now: datetime) -> None:
    appliance = lock_appliance(session, attempt.appliance_id)
    if appliance.quarantined_at is not None:
        if appliance.probe_at is not None:
            appliance.probe_at = max(appliance.probe_at, now + _pause(appliance, now))
        return
    since = max(now - WINDOW, appliance.quarantine_ended_at or now - WINDOW)
    failures = _failures(session, appliance.id, since=since)
    if _others_fail_to_pull(session, appliance, since=now - WINDOW):
        failures = [
            failure for failure in failures if failure.reason is not Reason.IMAGE_PULL_FAILED
        ]
    failures = [failure for failure in failures if not _is_pull_of_customer(failure)]
    jobs = {failure.job.array_id or failure.job_id for failure in failures}
    if len(jobs) < JOBS_TO_QUARANTINE:
        return
    appliance.quarantined_at = now
    # The message names the image, which is not for the provider.
    problem = "A rented job did not start." if attempt.contract_id else attempt.message
    appliance.quarantine_reason = _shorten(problem or "no container starts")
    message = f"Quarantined: {len(jobs)} jobs failed to start. {problem}"
    add_change_event(session, appliance, EventKind.QUARANTINED, message, now=now)
    appliance.probe_at = now
    if read_inventory(appliance).can_probe:
        _order_probe(session, appliance)


def _failures(session: Session, appliance_id: str, *, since: datetime) -> Sequence[Attempt]:
    """Return the attempts that failed to start on an appliance since a time, the latest first."""
    statement = (
        select(Attempt)
        .where(
            Attempt.appliance_id == appliance_id,
            Attempt.state == AttemptState.FAILED,
            Attempt.reason.in_(START_FAULTS),
            Attempt.started_at.is_(None),
            Attempt.assigned_at > since - WINDOW,
            Attempt.finished_at > since,
        )
        .order_by(Attempt.finished_at.desc(), Attempt.id.desc())
        .limit(100)
    )
    return session.scalars(statement).unique().all()


def _others_fail_to_pull(session: Session, appliance: Appliance, *, since: datetime) -> bool:
    """Return whether the registry fails for others, or there are no others to compare with."""
    others = (
        Appliance.tenant_id == appliance.tenant_id,
        Appliance.id != appliance.id,
        has_no_connector(),
    )
    count = select(func.count()).select_from(Appliance).where(*others, in_service())
    if not session.scalar(count):
        return True
    failed = (
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Attempt.tenant_id == appliance.tenant_id,
            Attempt.appliance_id != appliance.id,
            Attempt.reason == Reason.IMAGE_PULL_FAILED,
            Attempt.finished_at > since,
        )
    )
    return session.scalar(failed.limit(1)) is not None


def _order_probe(session: Session, appliance: Appliance) -> None:
    """Let the agent fetch a new probe; `probe_at` is None while it is under way."""
    appliance.probe_number += 1
    appliance.probe_at = None
    session.flush()
    bump_generation(session, appliance.id)


def _release(session: Session, appliance: Appliance, why: str, *, now: datetime) -> None:
    appliance.quarantined_at = appliance.probe_at = None
    appliance.quarantine_reason = ""
    appliance.quarantine_ended_at = now
    message = f"Released from quarantine: it accepts jobs again. {why}"
    add_change_event(session, appliance, EventKind.RELEASED, message, now=now)
    session.flush()
    bump_generation(session, appliance.id)


def _pause(appliance: Appliance, now: datetime) -> timedelta:
    """Return the time to the next probe: as long as the quarantine has lasted, within bounds."""
    lasted = now - (appliance.quarantined_at or now)
    return min(max(lasted, FIRST_PAUSE), LONGEST_PAUSE)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_REASON_LENGTH else text[: _MAX_REASON_LENGTH - 1] + "…"

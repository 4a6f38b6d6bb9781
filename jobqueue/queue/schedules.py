"""Schedules: jobs that are submitted on a schedule, and the list of their runs.

Each run is a job of the schedule's user. The portal keeps the time, whatever executor runs the
jobs: `jobqueue.queue.schedule_runs` submits what is due.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack
from zoneinfo import ZoneInfo

from msgspec import structs
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from core.paging import DEFAULT_PAGE_SIZE, Columns, Page, Paging, list_page, paginate
from core.schedule_times import check_schedule, check_time_zone, next_time, times_between
from core.secretbox import SecretBox
from jobqueue.jobs.cluster_requests import cluster_errors
from jobqueue.jobs.job_secrets import encrypt_secrets, secrets_of_request
from jobqueue.jobs.requests import MAX_NAME_LENGTH, request_errors
from jobqueue.models import JobSchedule, ScheduleRun
from jobqueue.queue.templates import store_request
from jobqueue.states import Missed, Overlap
from protocol.job_spec import JobKind, JobRequest
from tenants.permissions import Permission
from tenants.quotas import count_rows, reserve_quota
from tenants.scope import Scope

# Times that are shown.
NEXT_RUNS = 5
SCHEDULE_SORTS: Columns = {"name": JobSchedule.name, "next_run_at": JobSchedule.next_run_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """A schedule as a user saves it.

    Attributes:
        schedule: cron (`0 2 * * *`, `@daily`) or an ISO 8601 repeating interval
            (`R/2026-01-01T02:00/P1D`).
        time_zone: of times without an offset, such as `Europe/Oslo`.
        overlap: what to do when the last run has not ended.
        missed: what to do about times that passed while the scheduler was down.
    """

    name: str
    schedule: str
    job: JobRequest
    time_zone: str = "UTC"
    overlap: Overlap = field(default=Overlap.SKIP)
    missed: Missed = field(default=Missed.SKIP)


def list_schedules(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[JobSchedule]:
    """Return the schedules visible to the scope, by name by default."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(JobSchedule), JobSchedule)
    ordered = statement.order_by(JobSchedule.name, JobSchedule.id)
    return list_page(session, ordered, SCHEDULE_SORTS, last=JobSchedule.id, **paging)


def get_schedule(session: Session, scope: Scope, schedule_id: str) -> JobSchedule:
    """Return a schedule; another tenant's is not found."""
    scope.require(Permission.VIEW)
    return scope.get(session, JobSchedule, schedule_id, kind="job schedule")


def list_runs(
    session: Session,
    scope: Scope,
    schedule_id: str,
    *,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ScheduleRun]:
    """Return the runs of a schedule, newest first."""
    schedule = get_schedule(session, scope, schedule_id)
    statement = select(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id)
    return paginate(session, statement.order_by(ScheduleRun.id.desc()), number=page, size=page_size)


def create_schedule(
    session: Session, scope: Scope, request: ScheduleRequest, *, box: SecretBox, now: datetime
) -> JobSchedule:
    """Create a schedule; its jobs are those of the current user.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the name is taken, or the tenant's quota of schedules is reached.
    """
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id = scope.require_tenant()
    values = _checked(session, scope, request, but=None)
    reserve_quota(session, tenant_id, "schedules", partial(count_schedules, session, tenant_id))
    secrets = secrets_of_request(session, scope, request.job, box=box)
    schedule = JobSchedule(
        tenant_id=tenant_id,
        user_id=scope.user_id,
        secret_env=encrypt_secrets(box, secrets),
        secret_names=sorted(secrets),
        next_run_at=next_time(request.schedule, request.time_zone, after=now),
        created_at=now,
        **values,
    )
    session.add(schedule)
    session.flush()
    session.refresh(schedule)
    return schedule


def count_schedules(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's schedules."""
    return count_rows(session, JobSchedule.tenant_id == tenant_id)


def replace_schedule(
    session: Session,
    scope: Scope,
    schedule_id: str,
    request: ScheduleRequest,
    *,
    box: SecretBox,
    now: datetime,
) -> JobSchedule:
    """Replace a schedule of the current user; without secrets it retains those that it has.

    Raises:
        ForbiddenError: it is another user's: its jobs run as that user.
    """
    schedule = _changeable(session, scope, schedule_id)
    if schedule.user_id != scope.user_id:
        raise ConflictError(
            f"The jobs of {schedule.name!r} run as another user. Create a schedule of your own."
        )
    for name, value in _checked(session, scope, request, but=schedule.id).items():
        setattr(schedule, name, value)
    if request.job.secrets or request.job.secrets_from:
        secrets = secrets_of_request(session, scope, request.job, box=box)
        schedule.secret_env, schedule.secret_names = encrypt_secrets(box, secrets), sorted(secrets)
    return _enable(session, schedule, schedule.is_enabled, now=now)


def next_runs(schedule: JobSchedule) -> list[datetime]:
    """Return the next times of a schedule, in its time zone; none if it is disabled."""
    if schedule.next_run_at is None:
        return []
    times = times_between(
        schedule.schedule,
        schedule.time_zone,
        first=schedule.next_run_at,
        until=datetime.max.replace(tzinfo=UTC),
        max_count=NEXT_RUNS,
    )
    return [at.astimezone(ZoneInfo(schedule.time_zone)) for at in times]


def enable_schedule(
    session: Session, scope: Scope, schedule_id: str, *, is_enabled: bool, now: datetime
) -> JobSchedule:
    """Enable or disable a schedule. Times in between are not caught up on."""
    return _enable(session, _changeable(session, scope, schedule_id), is_enabled, now=now)


def delete_schedule(session: Session, scope: Scope, schedule_id: str) -> str:
    """Delete a schedule and its list of runs; its jobs stay. Return its name."""
    schedule = _changeable(session, scope, schedule_id)
    session.delete(schedule)
    session.flush()
    return schedule.name


def _changeable(session: Session, scope: Scope, schedule_id: str) -> JobSchedule:
    scope.require(Permission.SUBMIT_JOBS)
    schedule = get_schedule(session, scope, schedule_id)
    if schedule.user_id != scope.user_id:
        scope.require(Permission.STOP_ANY_JOB)
    return schedule


def _enable(
    session: Session,
    schedule: JobSchedule,
    is_enabled: bool,  # noqa: FBT001 - the value to set
    *,
    now: datetime,
) -> JobSchedule:
    schedule.is_enabled = is_enabled
    following = next_time(schedule.schedule, schedule.time_zone, after=now)
    schedule.next_run_at = following if is_enabled else None
    session.flush()
    return schedule


def _checked(
    session: Session, scope: Scope, request: ScheduleRequest, *, but: str | None
) -> dict[str, Any]:
    name = request.name.strip()
    job = structs.replace(request.job, name=request.job.name.strip() or name)
    tenant_id = scope.require_tenant()
    errors = request_errors(job, cluster_errors(session, tenant_id, job), scope=scope)
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        errors["name"] = [f"{name!r} is not a name; use up to {MAX_NAME_LENGTH} characters."]
    for field_name, check in (("schedule", check_schedule), ("time_zone", check_time_zone)):
        try:
            check(getattr(request, field_name))
        except ValueError as error:
            errors[field_name] = [str(error)]
    if job.kind is not JobKind.BATCH:
        errors["kind"] = ["Only jobs of kind 'batch' can be scheduled: a service never ends."]
    if job.after_ok or job.after_any:
        errors["after_ok"] = ["A scheduled job can't wait for others; remove the dependencies."]
    if errors:
        details = " ".join(error for of_field in errors.values() for error in of_field)
        raise InvalidInputError(f"The schedule was not saved. {details}", errors=errors)
    taken = select(JobSchedule.id).where(
        JobSchedule.tenant_id == tenant_id,
        JobSchedule.name == name,
        JobSchedule.id != (but or ""),
    )
    if session.scalar(taken):
        message = f"There is a schedule {name!r} already. Use another name, or change that one."
        raise ConflictError(message, errors={"name": [message]})
    values = {
        column: getattr(request, column)
        for column in ("schedule", "time_zone", "overlap", "missed")
    }
    return {"name": name, "request": store_request(job), **values}

"""`/job-schedules`: jobs that are submitted on a schedule, and their runs."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from jobqueue.models import JobSchedule, ScheduleRun
from jobqueue.queue.schedule_runs import run_now
from jobqueue.queue.schedules import (
    NEXT_RUNS,
    SCHEDULE_SORTS,
    ScheduleRequest,
    create_schedule,
    delete_schedule,
    enable_schedule,
    get_schedule,
    list_runs,
    list_schedules,
    next_runs,
    replace_schedule,
)
from jobqueue.queue.templates import load_request
from jobqueue.states import JobState, Missed, Overlap, RunOutcome
from portal.api.blueprint import APIBlueprint
from portal.api.job_requests import JobRequestSchema, job_request
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of, page_query
from portal.context import current_scope, database, now, portal
from tenants.permissions import Permission

job_schedules = APIBlueprint(
    "Job schedules",
    "/job-schedules",
    "Jobs that are submitted on a schedule.",
    changes=Permission.SUBMIT_JOBS,
)


class ScheduleSchema(Schema):
    """A schedule; `job` is the request of its runs, without the values of secrets."""

    id = fields.String()
    name = fields.String()
    user_email = fields.Function(lambda schedule: schedule.user.email if schedule.user else None)
    schedule = fields.String()
    time_zone = fields.String()
    overlap = fields.Enum(Overlap, by_value=True)
    missed = fields.Enum(Missed, by_value=True)
    is_enabled = fields.Boolean()
    next_run_at = instant()
    secret_names = fields.List(fields.String())
    job = fields.Function(
        lambda schedule: JobRequestSchema(exclude=("secrets", "secrets_from")).dump(
            load_request(schedule.request)
        ),
        metadata={"type": "object"},
    )


class ScheduleDetailSchema(ScheduleSchema):
    """A schedule with its next times."""

    next_runs_at = fields.Function(
        lambda schedule: [at.isoformat() for at in next_runs(schedule)],
        metadata={
            "type": "array",
            "items": {"type": "string", "format": "date-time"},
            "description": f"The next {NEXT_RUNS} times, in its time zone; none while disabled.",
        },
    )


class ScheduleRequestSchema(StrictSchema):
    """A schedule and the job that it submits."""

    name = fields.String(required=True)
    schedule = fields.String(
        required=True,
        metadata={
            "description": "Cron such as `0 2 * * *` or `@daily`, or an ISO 8601 repeating "
            "interval such as `R/2026-01-01T02:00/P1D`."
        },
    )
    time_zone = fields.String(
        load_default="UTC",
        metadata={"description": "Of times without an offset, such as `Europe/Oslo`."},
    )
    overlap = fields.Enum(
        Overlap,
        by_value=True,
        load_default=Overlap.SKIP,
        metadata={"description": "When the last run has not ended; `replace` stops it."},
    )
    missed = fields.Enum(
        Missed,
        by_value=True,
        load_default=Missed.SKIP,
        metadata={"description": "After times at which the scheduler was down."},
    )
    job = fields.Nested(JobRequestSchema, required=True)


class RunSchema(Schema):
    """A time at which a schedule was due."""

    id = fields.String()
    due_at = instant()
    outcome = fields.Enum(RunOutcome, by_value=True)
    message = fields.String()
    job_id = fields.String(allow_none=True)
    job_state = fields.Enum(JobState, by_value=True, attribute="job.state", allow_none=True)


@job_schedules.operation(
    "GET", query=page_query(SCHEDULE_SORTS, default="name"), answer=page_of(ScheduleSchema)
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the schedules."""
    with database() as session:
        return envelope(list_schedules(session, current_scope(), **query))


@job_schedules.operation(
    "POST", body=ScheduleRequestSchema, answer=ScheduleDetailSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> JobSchedule:
    """Create a schedule; its jobs are yours."""
    with database() as session:
        scope, box = current_scope(), portal().secrets
        return create_schedule(session, scope, _request(body), box=box, now=now())


@job_schedules.operation("GET", "/<schedule_id>", answer=ScheduleDetailSchema)
def show(schedule_id: str) -> JobSchedule:
    """Return a schedule."""
    with database() as session:
        return get_schedule(session, current_scope(), schedule_id)


@job_schedules.operation(
    "PUT", "/<schedule_id>", body=ScheduleRequestSchema, answer=ScheduleDetailSchema
)
def replace(schedule_id: str, body: dict[str, Any]) -> JobSchedule:
    """Replace a schedule of yours; without secrets it retains those that it has."""
    with database() as session:
        _check_if_match(session, schedule_id)
        return replace_schedule(
            session,
            current_scope(),
            schedule_id,
            _request(body),
            box=portal().secrets,
            now=now(),
        )


@job_schedules.operation("DELETE", "/<schedule_id>", status=HTTPStatus.NO_CONTENT)
def delete(schedule_id: str) -> None:
    """Delete a schedule and its list of runs; its jobs stay."""
    with database() as session:
        _check_if_match(session, schedule_id)
        delete_schedule(session, current_scope(), schedule_id)


def _check_if_match(session: Session, schedule_id: str) -> None:
    read = partial(get_schedule, session, current_scope(), schedule_id)
    job_schedules.check_if_match(session, JobSchedule, schedule_id, read, ScheduleDetailSchema)


@job_schedules.operation("POST", "/<schedule_id>/enable", answer=ScheduleDetailSchema)
def enable(schedule_id: str) -> JobSchedule:
    """Enable a schedule from its next time on."""
    with database() as session:
        return enable_schedule(session, current_scope(), schedule_id, is_enabled=True, now=now())


@job_schedules.operation("POST", "/<schedule_id>/disable", answer=ScheduleDetailSchema)
def disable(schedule_id: str) -> JobSchedule:
    """Disable a schedule; jobs that run continue."""
    with database() as session:
        return enable_schedule(session, current_scope(), schedule_id, is_enabled=False, now=now())


@job_schedules.operation("POST", "/<schedule_id>/run", answer=RunSchema)
def run(schedule_id: str) -> ScheduleRun:
    """Submit a job of the schedule now."""
    with database() as session:
        return run_now(session, current_scope(), schedule_id, box=portal().secrets, now=now())


@job_schedules.operation("GET", "/<schedule_id>/runs", query=PageQuery, answer=page_of(RunSchema))
def runs(schedule_id: str, query: dict[str, Any]) -> dict[str, Any]:
    """List the runs of a schedule with their outcomes, newest first."""
    with database() as session:
        return envelope(list_runs(session, current_scope(), schedule_id, **query))


def _request(body: dict[str, Any]) -> ScheduleRequest:
    return ScheduleRequest(**{**body, "job": job_request(body["job"])})

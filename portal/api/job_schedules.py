"""`/job-schedules`: jobs that are submitted on a schedule, and their runs."""

from functools import partial
from typing import Any

from marshmallow import Schema, fields

from jobqueue.models import JobSchedule
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
from portal.api.objects import Objects
from portal.api.schemas import PageQuery, StrictSchema, about, instant, page_query
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
        **about(
            f"The next {NEXT_RUNS} times, in its time zone; none while disabled.",
            type="array",
            items={"type": "string", "format": "date-time"},
        ),
    )


class ScheduleRequestSchema(StrictSchema):
    """A schedule and the job that it submits."""

    name = fields.String(required=True)
    schedule = fields.String(
        required=True,
        **about(
            "Cron such as `0 2 * * *` or `@daily`, or an ISO 8601 repeating "
            "interval such as `R/2026-01-01T02:00/P1D`."
        ),
    )
    time_zone = fields.String(
        load_default="UTC", **about("Of times without an offset, such as `Europe/Oslo`.")
    )
    overlap = fields.Enum(
        Overlap,
        by_value=True,
        load_default=Overlap.SKIP,
        **about("When the last run has not ended; `replace` stops it."),
    )
    missed = fields.Enum(
        Missed,
        by_value=True,
        load_default=Missed.SKIP,
        **about("After times at which the scheduler was down."),
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


def _request(*, job: dict[str, Any], **values: Any) -> ScheduleRequest:  # noqa: ANN401 - the body's
    return ScheduleRequest(**values, job=job_request(job))


objects = Objects(
    job_schedules,
    "/<schedule_id>",
    read=get_schedule,
    answer=ScheduleDetailSchema,
    model=JobSchedule,
    body=ScheduleRequestSchema,
    request=_request,
)
objects.lists(
    "List the schedules.",
    list_schedules,
    query=page_query(SCHEDULE_SORTS, default="name"),
    answer=ScheduleSchema,
)
objects.creates("Create a schedule; its jobs are yours.", create_schedule)
objects.shows("Return a schedule.")
objects.replaces(
    "Replace a schedule of yours; without secrets it retains those that it has.", replace_schedule
)
objects.deletes("Delete a schedule and its list of runs; its jobs stay.", delete_schedule)
objects.acts(
    "Enable a schedule from its next time on.", partial(enable_schedule, is_enabled=True), "enable"
)
objects.acts(
    "Disable a schedule; jobs that run continue.",
    partial(enable_schedule, is_enabled=False),
    "disable",
)
objects.acts("Submit a job of the schedule now.", run_now, "run", answer=RunSchema)
objects.lists(
    "List the runs of a schedule with their outcomes, newest first.",
    list_runs,
    query=PageQuery,
    path="/<schedule_id>/runs",
    answer=RunSchema,
    name="runs",
)

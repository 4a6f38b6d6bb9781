"""`/jobs`: submit, list, follow and stop jobs."""

from http import HTTPStatus
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from jobqueue.models import Job
from jobqueue.service import (
    JOB_SORTS,
    JobRequest,
    get_job,
    job_events,
    list_jobs,
    stop_job,
    submit_job,
)
from jobqueue.states import AttemptState, JobKind, JobState, Reason
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of, whole_list
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now, portal
from portal.showing.logtext import LogText, raw_log, text_page
from portal.showing.usage import JobUsage, job_usage
from tenants.permissions import Permission

jobs = resource("Jobs", "/jobs", "Container jobs.", changes=Permission.SUBMIT_JOBS)

GIB = 1024**3
MAX_LOG_OFFSET = 2**53
MAX_ATTEMPT_NUMBER = 1_000_000


class AttemptSchema(Schema):
    """One try at a job on one appliance, with why it was placed there."""

    id = fields.String()
    number = fields.Integer()
    appliance_id = fields.String()
    appliance_name = fields.String(attribute="appliance.name")
    state = fields.Enum(AttemptState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()
    gpu_uuids = fields.List(fields.String())
    placement = fields.Dict()
    exit_code = fields.Integer(allow_none=True)
    bound_at = instant()
    assigned_at = instant()
    started_at = instant()
    finished_at = instant()
    log_bytes = fields.Integer()


class JobSchema(Schema):
    """A job, with its newest attempt."""

    id = fields.String()
    tenant_id = fields.String()
    user_id = fields.String(allow_none=True)
    user_email = fields.Function(lambda job: job.user.email if job.user else None)
    name = fields.String()
    kind = fields.Enum(JobKind, by_value=True)
    image = fields.String()
    command = fields.List(fields.String())
    gpus = fields.Integer()
    gpu_memory_bytes = fields.Integer()
    cpus = fields.Float()
    memory_bytes = fields.Integer()
    requested_appliance_id = fields.String(attribute="appliance_id", allow_none=True)
    state = fields.Enum(JobState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()
    exit_code = fields.Integer(allow_none=True)
    submitted_at = instant()
    started_at = instant()
    finished_at = instant()
    stop_requested_at = instant()
    appliance_id = fields.Function(lambda job: job.attempt.appliance_id if job.attempt else None)
    appliance_name = fields.Function(
        lambda job: job.attempt.appliance.name if job.attempt else None
    )
    attempt = fields.Nested(AttemptSchema, allow_none=True)


class JobDetailSchema(JobSchema):
    """A job with its environment and all its attempts."""

    env = fields.Dict(keys=fields.String(), values=fields.String())
    attempts = fields.List(fields.Nested(AttemptSchema))


class JobRequestSchema(StrictSchema):
    """What to run, and what it needs."""

    name = fields.String(required=True)
    image = fields.String(required=True)
    command = fields.List(fields.String(), load_default=list)
    env = fields.Dict(keys=fields.String(), values=fields.String(), load_default=dict)
    kind = fields.Enum(JobKind, by_value=True, load_default=JobKind.BATCH)
    gpus = fields.Integer(strict=True, load_default=0)
    gpu_memory_bytes = fields.Integer(strict=True, load_default=0)
    cpus = fields.Float(load_default=1.0)
    memory_bytes = fields.Integer(strict=True, load_default=GIB)
    appliance_id = fields.String(load_default=None, allow_none=True)


class JobQuery(PageQuery):
    """Which jobs."""

    state = fields.Enum(JobState, by_value=True, load_default=None)
    search = fields.String(load_default="")
    sort = sort_field(JOB_SORTS, default="-submitted_at")


class EventSchema(Schema):
    """A line of a job's history."""

    id = fields.String()
    at = instant()
    state = fields.Enum(JobState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()


class LogQuery(StrictSchema):
    """Which part of the log, and in which form."""

    offset = fields.Integer(load_default=0, validate=validate.Range(min=0, max=MAX_LOG_OFFSET))
    attempt_number = fields.Integer(
        load_default=None, validate=validate.Range(min=1, max=MAX_ATTEMPT_NUMBER)
    )
    format = fields.String(load_default="json", validate=validate.OneOf(["json", "raw"]))


class LogSchema(Schema):
    """A piece of the log; ask again from `next_offset` until `is_complete`."""

    attempt_number = fields.Integer(metadata={"description": "0 before the first attempt."})
    offset = fields.Integer()
    next_offset = fields.Integer()
    text = fields.String()
    is_complete = fields.Boolean()


class UsageSeriesSchema(Schema):
    """Values of one field over time."""

    field = fields.String()
    gpu = fields.String(metadata={"description": "Index of the GPU; empty for the job itself."})
    unit = fields.String()
    times_ms = fields.List(fields.Integer())
    values = fields.List(fields.Float())


class UsageSchema(Schema):
    """What a job uses: CPU and memory of its container, and its GPUs."""

    step_seconds = fields.Float()
    series = fields.List(fields.Nested(UsageSeriesSchema))


@jobs.operation("GET", query=JobQuery, answer=page_of(JobSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List jobs, newest first."""
    with database() as session:
        return envelope(list_jobs(session, current_scope(), **query))


@jobs.operation("POST", body=JobRequestSchema, answer=JobDetailSchema, status=HTTPStatus.CREATED)
def submit(body: dict[str, Any]) -> Job:
    """Submit a job; it is placed on the first appliance with room for it."""
    with database() as session:
        return submit_job(session, current_scope(), JobRequest(**body), now=now())


@jobs.operation("GET", "/<job_id>", answer=JobDetailSchema)
def show(job_id: str) -> Job:
    """Return a job with all its attempts."""
    with database() as session:
        return get_job(session, current_scope(), job_id)


@jobs.operation("POST", "/<job_id>/stop", answer=JobDetailSchema)
def stop(job_id: str) -> Job:
    """Ask a job to stop; asking twice is fine."""
    with database() as session:
        return stop_job(session, current_scope(), job_id, now=now())


@jobs.operation("GET", "/<job_id>/events", answer=page_of(EventSchema))
def events(job_id: str) -> dict[str, Any]:
    """Return a job's history, oldest first."""
    with database() as session:
        return whole_list(job_events(session, current_scope(), job_id))


@jobs.operation("GET", "/<job_id>/log", query=LogQuery, answer=LogSchema)
@jobs.alt_response(  # type: ignore[untyped-decorator] # flask-smorest
    HTTPStatus.OK, schema={"type": "string"}, content_type="text/plain", success=True
)
def log(job_id: str, query: dict[str, Any]) -> LogText | Response:
    """Return a piece of a job's output as JSON, or all of it as text with `format=raw`."""
    number = query["attempt_number"]
    with database() as session:
        if query["format"] == "raw":
            data = raw_log(session, current_scope(), job_id, attempt_number=number)
            response = Response(data, mimetype="text/plain")
            response.headers["Content-Disposition"] = f'attachment; filename="job-{job_id}.log"'
            return response
        return text_page(
            session, current_scope(), job_id, offset=query["offset"], attempt_number=number
        )


@jobs.operation("GET", "/<job_id>/usage", answer=UsageSchema)
def usage(job_id: str) -> JobUsage:
    """Return what a job uses: the last minutes while it runs, the whole run afterwards."""
    with database() as session:
        job = get_job(session, current_scope(), job_id)
    return job_usage(portal().store, job, tenants=current_scope().tenants, now=now())

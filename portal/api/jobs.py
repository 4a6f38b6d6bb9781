"""`/jobs`: submit, list, follow and stop jobs."""

from http import HTTPStatus
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from jobqueue.again import retry_job, set_priority
from jobqueue.applying import apply_jobs, rehearse_jobs
from jobqueue.job_secrets import make_secret
from jobqueue.models import Job
from jobqueue.pending import explain_job, explain_new, pending_reason, try_job
from jobqueue.placement.explanation import Explanation
from jobqueue.placement.plan import Action
from jobqueue.requests import MAX_PRIORITY
from jobqueue.service import (
    JOB_SORTS,
    get_job,
    job_events,
    list_jobs,
    stop_array,
    stop_job,
    submit_job,
)
from jobqueue.snapshot import WAITING
from jobqueue.states import (
    AttemptState,
    DependencyCondition,
    JobKind,
    JobState,
    LogState,
    Reason,
)
from jobqueue.usage.efficiency import Efficiency
from portal.api.blueprint import APIBlueprint
from portal.api.job_requests import (
    ApplicationSchema,
    JobRequestSchema,
    MountSchema,
    PortSchema,
    job_request,
)
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    envelope,
    instant,
    page_of,
    sort_field,
    whole_list,
)
from portal.context import current_scope, database, now, portal
from portal.presenters.arrays import listed
from portal.presenters.jobs import efficiency_of, job_usage, log_page, raw_log
from protocol.attempts import ContainerPolicy
from protocol.logs import Stream
from tenants.permissions import Permission

jobs = APIBlueprint("Jobs", "/jobs", "Container jobs.", changes=Permission.SUBMIT_JOBS)

MAX_LOG_OFFSET = 2**53
MAX_ATTEMPT_NUMBER = 1_000_000


class AttemptSchema(Schema):
    """One attempt to run a job on an appliance, with its placement."""

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
    log_state = fields.Enum(LogState, by_value=True)
    log_is_full = fields.Boolean(metadata={"description": "Later output was not stored."})


class DependencySchema(Schema):
    """A job that must end, or succeed, before another one starts."""

    job_id = fields.String()
    name = fields.String()
    condition = fields.String(metadata={"enum": [one.value for one in DependencyCondition]})


class JobSchema(Schema):
    """A job with its latest attempt."""

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
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    gpu_models = fields.List(fields.String())
    required_labels = fields.Dict(keys=fields.String(), values=fields.String())
    working_dir = fields.String()
    shared_memory_bytes = fields.Integer()
    mounts = fields.List(fields.Nested(MountSchema))
    ports = fields.List(fields.Nested(PortSchema))
    priority = fields.Integer()
    is_preemptible = fields.Boolean()
    max_retries = fields.Integer()
    retry_on = fields.List(fields.String())
    time_limit_seconds = fields.Integer()
    notify = fields.List(fields.String())
    idle_gpu_percent = fields.Integer()
    idle_gpu_seconds = fields.Integer()
    dependencies = fields.List(fields.Nested(DependencySchema))
    array_id = fields.String(
        allow_none=True, metadata={"description": "The first task of its array."}
    )
    array_index = fields.Integer(allow_none=True)
    array_size = fields.Integer()
    array_limit = fields.Integer(metadata={"description": "Tasks that may run at once; 0 is any."})
    array_states = fields.Dict(
        keys=fields.String(),
        values=fields.Integer(),
        metadata={"description": "Tasks by state, in lists with `is_collapsed`."},
    )
    container_policy = fields.Enum(ContainerPolicy, by_value=True)
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
    secret_names = fields.List(
        fields.String(), metadata={"description": "Variables whose values are never returned."}
    )
    attempts = fields.List(fields.Nested(AttemptSchema))


class ExampleSchema(Schema):
    """An appliance that was rejected, and the fact that speaks against it."""

    appliance_id = fields.String()
    appliance = fields.String()
    fact = fields.String()


class RejectionSchema(Schema):
    """How many appliances were rejected for one reason, with a few of them."""

    code = fields.String()
    count = fields.Integer()
    examples = fields.List(fields.Nested(ExampleSchema))


class ExplanationSchema(Schema):
    """Why a job waits, or where a new one would go; the most relevant reason comes first."""

    is_pending = fields.Boolean(
        metadata={"description": "False if it has been placed, or would be at once."}
    )
    reason = fields.String()
    appliance_id = fields.String(
        allow_none=True, metadata={"description": "Where it starts, or for which it waits."}
    )
    position = fields.Integer(allow_none=True)
    queue_length = fields.Integer(allow_none=True)
    needs = fields.String(metadata={"description": "What would have to free up."})
    expected_start_at = fields.AwareDateTime(
        allow_none=True, metadata={"description": "By time limits; null if that can't be told."}
    )
    rejections = fields.List(fields.Nested(RejectionSchema))


class AppliedJobSchema(Schema):
    """A job of a file."""

    job_id = fields.String(allow_none=True, metadata={"description": "Null after a dry run."})
    name = fields.String()
    placement = fields.Nested(
        ExplanationSchema, allow_none=True, metadata={"description": "Of a dry run."}
    )


class SecretNamesSchema(StrictSchema):
    """Names of variables that become secret."""

    names = fields.List(fields.String(), required=True, validate=validate.Length(min=1))


class JobQuery(PageQuery):
    """Filters of the list."""

    state = fields.Enum(JobState, by_value=True, load_default=None)
    search = fields.String(load_default="")
    user = fields.String(
        load_default="", metadata={"description": "An email address, an ID, or `me`."}
    )
    appliance_id = fields.String(load_default="")
    label = fields.String(
        load_default="", metadata={"description": "`project` or `project=vision`."}
    )
    since = fields.AwareDateTime(
        load_default=None, metadata={"description": "Submitted at this time or later."}
    )
    until = fields.AwareDateTime(
        load_default=None, metadata={"description": "Submitted before this time."}
    )
    array_id = fields.String(load_default="", metadata={"description": "Tasks of this array."})
    is_collapsed = fields.Boolean(
        load_default=False, metadata={"description": "Only the first task of each array."}
    )
    sort = sort_field(JOB_SORTS, default="-submitted_at")


class EventSchema(Schema):
    """An event of a job."""

    id = fields.String()
    at = instant()
    state = fields.Enum(JobState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()


class PrioritySchema(StrictSchema):
    """A new priority."""

    priority = fields.Integer(
        strict=True, required=True, validate=validate.Range(min=-MAX_PRIORITY, max=MAX_PRIORITY)
    )


class LogQuery(StrictSchema):
    """Range and format of the log."""

    offset = fields.Integer(load_default=0, validate=validate.Range(min=0, max=MAX_LOG_OFFSET))
    attempt_number = fields.Integer(
        load_default=None, validate=validate.Range(min=1, max=MAX_ATTEMPT_NUMBER)
    )
    format = fields.String(load_default="json", validate=validate.OneOf(["json", "raw"]))
    stream = fields.Enum(
        Stream,
        by_value=True,
        load_default=None,
        metadata={"description": "With `format=raw`: only stdout or stderr."},
    )
    tail_bytes = fields.Integer(
        load_default=None,
        validate=validate.Range(min=0, max=MAX_LOG_OFFSET),
        metadata={"description": "Begin this long before the end, instead of at `offset`."},
    )
    search = fields.String(
        load_default="",
        validate=validate.Length(max=200),
        metadata={"description": "Only `lines` with this text, in upper or lower case."},
    )
    timestamps = fields.Boolean(
        load_default=False, metadata={"description": "With `format=raw`: times before lines."}
    )


class LogLineSchema(Schema):
    """A line of the log."""

    at = fields.String(metadata={"description": "Time in UTC; empty if it is not known."})
    stream = fields.Enum(Stream, by_value=True)
    text = fields.String()
    is_open = fields.Boolean(
        metadata={"description": "The next line of this stream continues this one."}
    )


class LogSchema(Schema):
    """A chunk of the log; continue from `next_offset` until `is_complete`."""

    attempt_number = fields.Integer(metadata={"description": "0 before the first attempt starts."})
    offset = fields.Integer()
    next_offset = fields.Integer()
    text = fields.String()
    lines = fields.List(fields.Nested(LogLineSchema))
    is_complete = fields.Boolean()


class UsageSeriesSchema(Schema):
    """Values of one field over time."""

    field = fields.String()
    gpu = fields.String(metadata={"description": "GPU index; empty for the job as a whole."})
    unit = fields.String()
    times_ms = fields.List(fields.Integer())
    values = fields.List(fields.Float())


class UsageSchema(Schema):
    """Resource usage of a job: CPU and memory of its container, and its GPUs."""

    step_seconds = fields.Float()
    series = fields.List(fields.Nested(UsageSeriesSchema))


class EfficiencySchema(Schema):
    """What a job held and used over all of its attempts; null where nothing was measured."""

    gpus = fields.Integer()
    gpus_used = fields.Integer(
        allow_none=True, metadata={"description": "GPUs that the last attempt used at some time."}
    )
    gpu_utilization_ratio = fields.Float(allow_none=True)
    allocated_gpu_seconds = fields.Float()
    used_gpu_seconds = fields.Float()
    idle_gpu_seconds = fields.Float()
    gpu_memory_peak_bytes = fields.Integer(
        allow_none=True, metadata={"description": "Of the GPU that used most."}
    )
    gpu_memory_total_bytes = fields.Integer(allow_none=True)
    memory_peak_bytes = fields.Integer(allow_none=True)
    memory_bytes = fields.Integer()
    cpu_cores_used = fields.Float(allow_none=True, metadata={"description": "On average."})
    cpus = fields.Float()
    energy_kilowatt_hours = fields.Float(allow_none=True, metadata={"description": "Of the GPUs."})
    advice = fields.String(metadata={"description": "What to change; may be empty."})


@jobs.operation("GET", query=JobQuery, answer=page_of(JobSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List jobs, newest first."""
    with database() as session:
        page = list_jobs(session, current_scope(), **query)
        items = listed(session, current_scope(), page.items) if query["is_collapsed"] else None
        return envelope(page, items)


@jobs.operation("POST", body=JobRequestSchema, answer=JobDetailSchema, status=HTTPStatus.CREATED)
def submit(body: dict[str, Any]) -> Job:
    """Submit a job; it runs on the first appliance with enough free resources."""
    with database() as session:
        return submit_job(
            session, current_scope(), job_request(body), box=portal().secrets, now=now()
        )


@jobs.operation("POST", "/dry-run", body=JobRequestSchema, answer=ExplanationSchema)
def dry_run(body: dict[str, Any]) -> dict[str, Any]:
    """Return where a new job would go and when, and why not elsewhere; nothing is submitted."""
    with database() as session:
        return _explained(try_job(session, current_scope(), job_request(body), now=now()), "")


@jobs.operation("POST", "/apply", body=ApplicationSchema, answer=page_of(AppliedJobSchema))
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Submit the jobs of a file: all or none; a dry run returns where they would go, and when."""
    requests = [job_request(one) for one in body["jobs"]]
    scope, box = current_scope(), portal().secrets
    if not body["is_dry_run"]:
        with database() as session:
            made = apply_jobs(session, scope, requests, box=box, now=now())
        rows = [{"job_id": job.id, "name": job.name, "placement": None} for job in made]
        return whole_list(rows)
    with database() as session:
        tried = rehearse_jobs(session, scope, requests, box=box, now=now())
    # Planning a long queue takes a while: nobody's writes wait for it.
    with database() as session:
        found = explain_new(session, scope, tried, now=now())
    return whole_list(
        [
            {"job_id": None, "name": job.name, "placement": _explained(found[job.id], "")}
            for job in tried
        ]
    )


@jobs.operation("GET", "/<job_id>/pending", answer=ExplanationSchema)
def pending(job_id: str) -> dict[str, Any]:
    """Return why a job waits, what would have to free up, and when it is expected to start."""
    with database() as session:
        job = get_job(session, current_scope(), job_id)
        found = explain_job(session, current_scope(), job_id, now=now())
        reason = pending_reason(session, job)
        return _explained(found, reason, is_pending=job.state in WAITING)


def _explained(
    found: Explanation | None, message: str, *, is_pending: bool = False
) -> dict[str, Any]:
    if found is None:
        nothing = dict.fromkeys(("appliance_id", "position", "queue_length", "expected_start_at"))
        shown = {"is_pending": is_pending, "reason": message}
        return {**shown, "needs": "", "rejections": [], **nothing}
    decision = found.decision
    return {
        "is_pending": decision.action is not Action.ASSIGN,
        "reason": decision.reason,
        "appliance_id": decision.appliance_id,
        "position": found.position,
        "queue_length": found.queue_length,
        "needs": found.needs,
        "expected_start_at": found.expected_start_at,
        "rejections": decision.rejections,
    }


@jobs.operation("GET", "/<job_id>", answer=JobDetailSchema)
def show(job_id: str) -> Job:
    """Return a job with all its attempts."""
    with database() as session:
        return get_job(session, current_scope(), job_id)


@jobs.operation("POST", "/<job_id>/retry", answer=JobDetailSchema, status=HTTPStatus.CREATED)
def retry(job_id: str) -> Job:
    """Submit a job again, as it is; one with secrets only by its user."""
    with database() as session:
        return retry_job(session, current_scope(), job_id, box=portal().secrets, now=now())


@jobs.operation("POST", "/<job_id>/priority", body=PrioritySchema, answer=JobDetailSchema)
def change_priority(job_id: str, body: dict[str, Any]) -> Job:
    """Change the priority of a job that waits; above 0 only by an admin."""
    with database() as session:
        return set_priority(session, current_scope(), job_id, body["priority"], now=now())


@jobs.operation("POST", "/<job_id>/stop", answer=JobDetailSchema)
def stop(job_id: str) -> Job:
    """Request that a job stops; idempotent."""
    with database() as session:
        return stop_job(session, current_scope(), job_id, now=now())


@jobs.operation("POST", "/<job_id>/stop-array", answer=JobDetailSchema)
def stop_all(job_id: str) -> Job:
    """Request that all tasks of a job's array stop."""
    with database() as session:
        return stop_array(session, current_scope(), job_id, now=now())


@jobs.operation("POST", "/<job_id>/make-secret", body=SecretNamesSchema, answer=JobDetailSchema)
def hide_variables(job_id: str, body: dict[str, Any]) -> Job:
    """Turn plain environment variables of a job into secrets.

    Their values are not returned any more. Backups of the database may still have them.
    """
    with database() as session:
        return make_secret(session, current_scope(), job_id, body["names"], box=portal().secrets)


@jobs.operation("GET", "/<job_id>/events", answer=page_of(EventSchema))
def events(job_id: str) -> dict[str, Any]:
    """List the events of a job, oldest first."""
    with database() as session:
        return whole_list(job_events(session, current_scope(), job_id))


@jobs.operation("GET", "/<job_id>/log", query=LogQuery, answer=LogSchema)
@jobs.alt_response(  # type: ignore[untyped-decorator] # flask-smorest
    HTTPStatus.OK, schema={"type": "string"}, content_type="text/plain", success=True
)
def log(job_id: str, query: dict[str, Any]) -> dict[str, Any] | Response:
    """Return a chunk of the job log as JSON, or all of it as text with `format=raw`."""
    number = query["attempt_number"]
    if query["format"] == "json":
        part = {name: query[name] for name in ("offset", "tail_bytes", "search")}
        return log_page(job_id, attempt_number=number, **part)
    data = raw_log(
        job_id, attempt_number=number, stream=query["stream"], with_times=query["timestamps"]
    )
    response = Response(data, mimetype="text/plain")
    response.headers["Content-Disposition"] = f'attachment; filename="job-{job_id}.log"'
    return response


@jobs.operation("GET", "/<job_id>/usage", answer=UsageSchema)
def usage(job_id: str) -> dict[str, Any]:
    """Return the resource usage of a job: the last minutes while it runs, then the whole run."""
    with database() as session:
        job = get_job(session, current_scope(), job_id)
    return job_usage(portal().store, job, tenants=current_scope().tenants, now=now())


@jobs.operation("GET", "/<job_id>/efficiency", answer=EfficiencySchema)
def efficiency(job_id: str) -> Efficiency:
    """Return how well a job uses what it holds, with advice."""
    return efficiency_of(job_id)

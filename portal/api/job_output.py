"""`/jobs/ID`: the log of a job, and what it uses."""

from http import HTTPStatus
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from jobqueue.gangs.frameworks import FrameworkDescription, framework_description
from jobqueue.queue.service import get_job
from jobqueue.usage.efficiency import Efficiency
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, about
from portal.context import current_scope, database, now, portal
from portal.presenters.jobs import efficiency_of, job_usage, log_page, raw_log
from protocol.gangs import Framework, JobNetwork
from protocol.logs import Stream

job_output = APIBlueprint("Job output", "/jobs", "Logs of jobs, and what they use.")
MAX_LOG_OFFSET = 2**53
MAX_ATTEMPT_NUMBER = 1_000_000


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
        **about("With `format=raw`: only stdout or stderr."),
    )
    tail_bytes = fields.Integer(
        load_default=None,
        validate=validate.Range(min=0, max=MAX_LOG_OFFSET),
        **about("Begin this long before the end, instead of at `offset`."),
    )
    search = fields.String(
        load_default="",
        validate=validate.Length(max=200),
        **about("Only `lines` with this text, in upper or lower case."),
    )
    timestamps = fields.Boolean(
        load_default=False, **about("With `format=raw`: times before lines.")
    )


class LogLineSchema(Schema):
    """A line of the log."""

    at = fields.String(**about("Time in UTC; empty if it is not known."))
    stream = fields.Enum(Stream, by_value=True)
    text = fields.String()
    is_open = fields.Boolean(**about("The next line of this stream continues this one."))


class LogSchema(Schema):
    """A chunk of the log; continue from `next_offset` until `is_complete`."""

    attempt_number = fields.Integer(**about("0 before the first attempt starts."))
    offset = fields.Integer()
    next_offset = fields.Integer()
    text = fields.String()
    lines = fields.List(fields.Nested(LogLineSchema))
    is_complete = fields.Boolean()


class UsageSeriesSchema(Schema):
    """Values of one field over time."""

    field = fields.String()
    gpu = fields.String(**about("GPU index; empty for the job as a whole."))
    unit = fields.String()
    times_ms = fields.List(fields.Integer())
    values = fields.List(fields.Float())


class UsageSchema(Schema):
    """Resource usage of a job: CPU and memory of its container, its GPUs, or its slice of one."""

    step_seconds = fields.Float()
    series = fields.List(fields.Nested(UsageSeriesSchema))


class EvidenceSchema(Schema):
    """A measured value: its average while the GPUs wait."""

    measurement = fields.String()
    field = fields.String()
    value = fields.Float()


class BottleneckSchema(Schema):
    """What the GPUs of a job wait for."""

    code = fields.String(**about("`cpu`, `disk`, `memory` or `host`."))
    share_ratio = fields.Float(**about("Of the time of the last attempt."))
    sentence = fields.String()
    evidence = fields.List(fields.Nested(EvidenceSchema))


class MemberSchema(Schema):
    """A member of a gang, as the others reach it."""

    rank = fields.Integer()
    name = fields.String(**about("Its host name in a private network."))
    address = fields.String(**about("Empty while it is not known."))
    appliance_id = fields.String(**about("Empty while it has none."))


class VariableSchema(Schema):
    """An environment variable, and why a member gets it."""

    name = fields.String()
    value = fields.String(**about("Empty for a secret of the job."))
    reason = fields.String()


class FrameworkSchema(Schema):
    """What a job gets for its framework; members and variables once it is placed."""

    framework = fields.Enum(Framework, by_value=True)
    network = fields.Enum(JobNetwork, by_value=True)
    rank = fields.Integer(**about("0 is the first member."))
    size = fields.Integer(**about("Members of its gang; 1 without one."))
    members = fields.List(fields.Nested(MemberSchema))
    variables = fields.List(fields.Nested(VariableSchema))


class GPUTimeSchema(Schema):
    """The time that GPUs were allocated and used; the ratio is null if not measured."""

    gpu_utilization_ratio = fields.Float(allow_none=True)
    allocated_gpu_seconds = fields.Float()
    used_gpu_seconds = fields.Float()
    idle_gpu_seconds = fields.Float()


class MemberUseSchema(GPUTimeSchema):
    """The GPU time of a member of a gang."""

    job_id = fields.String()
    rank = fields.Integer()


class GangUseSchema(GPUTimeSchema):
    """The GPU time of a gang: in sum, and by member."""

    members = fields.List(fields.Nested(MemberUseSchema))


class EfficiencySchema(GPUTimeSchema):
    """Resources that a job held and used over all of its attempts; null if not measured."""

    gpus = fields.Integer(**about("GPUs that the last attempt is on; 1 with a slice of a GPU."))
    gpu_slice = fields.String(
        **about("Its slice of the GPU, such as `1g.10gb`; empty for whole GPUs.")
    )
    not_measurable = fields.String(
        **about("What the driver can't tell of the slice, and why; may be empty.")
    )
    gpus_used = fields.Integer(
        allow_none=True, **about("GPUs that the last attempt used at some time.")
    )
    gpu_memory_peak_bytes = fields.Integer(allow_none=True, **about("Of the GPU that used most."))
    gpu_memory_total_bytes = fields.Integer(allow_none=True)
    memory_peak_bytes = fields.Integer(allow_none=True)
    memory_bytes = fields.Integer()
    cpu_cores_used = fields.Float(allow_none=True, **about("On average."))
    cpus = fields.Float()
    energy_kilowatt_hours = fields.Float(allow_none=True, **about("Of the GPUs."))
    bottleneck = fields.Nested(
        BottleneckSchema, allow_none=True, **about("What the GPUs wait for.")
    )
    advice = fields.String(**about("What to change; may be empty."))
    gang = fields.Nested(GangUseSchema, allow_none=True, **about("Of all members of its gang."))


@job_output.operation(
    "GET",
    "/<job_id>/log",
    query=LogQuery,
    answer=LogSchema,
    responses={HTTPStatus.OK: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
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


@job_output.operation("GET", "/<job_id>/usage", answer=UsageSchema)
def usage(job_id: str) -> dict[str, Any]:
    """Return the resource usage of a job: the last minutes while it runs, then the whole run."""
    with database() as session:
        job = get_job(session, current_scope(), job_id)
    return job_usage(portal().store, job, tenants=current_scope().tenants, now=now())


@job_output.operation("GET", "/<job_id>/efficiency", answer=EfficiencySchema)
def efficiency(job_id: str) -> Efficiency:
    """Return how well a job uses what it holds, with advice."""
    return efficiency_of(job_id)


@job_output.operation("GET", "/<job_id>/framework", answer=FrameworkSchema)
def framework(job_id: str) -> FrameworkDescription:
    """Return the members of a job's gang, and the variables that its framework gets, with why."""
    with database() as session:
        return framework_description(session, get_job(session, current_scope(), job_id))

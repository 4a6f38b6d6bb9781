"""Jobs in answers of the API."""

from typing import Any

import msgspec
from marshmallow import Schema, fields

from jobqueue.partitions.isolation import ISOLATION
from jobqueue.partitions.texts import requested_text, slice_text
from jobqueue.states import AttemptState, DependencyCondition, JobState, LogState, Reason
from portal.api.cluster_schemas import ApplianceNameSchema
from portal.api.job_placement import IsolationSchema
from portal.api.job_requests import SCHEMAS
from portal.api.schemas import about, instant
from portal.api.spec_schemas import response_schema
from protocol.attempts import Health
from protocol.gpu_slices import GPUSlice, PartitionMode
from protocol.job_spec import ContainerPolicy, JobKind, JobSpec


class SliceSchema(Schema):
    """The part of a GPU that an attempt has."""

    mode = fields.String(metadata={"enum": [mode.value for mode in PartitionMode]})
    gpu_uuid = fields.String()
    profile = fields.String(**about("Under MIG."))
    start = fields.Integer(**about("Under MIG, its first slot, from 0."))
    slots = fields.Integer(**about("Under MIG, how many it covers."))
    uuid = fields.String(**about("Under MIG, of the instance, once it is made."))
    shares = fields.Integer(**about("Under MPS and time slicing, how many."))
    share_milli = fields.Integer(**about("Thousandths of the GPU."))
    memory_bytes = fields.Integer(**about("Of the instance, or the limit; time slicing has none."))
    text = fields.Function(
        lambda held: slice_text(msgspec.convert(held, GPUSlice)), metadata={"type": "string"}
    )
    isolation = fields.Function(
        lambda held: IsolationSchema().dump(ISOLATION[PartitionMode(held["mode"])]),
        **about("What separates it from others on the GPU.", type="object"),
    )


class StagingSchema(Schema):
    """How far the data of an attempt is, before it starts."""

    staged_bytes = fields.Integer(**about("With what was cached."))
    total_bytes = fields.Integer()
    remaining_seconds = fields.Float(
        allow_none=True, **about("By the rate of the last minute; null: unknown.")
    )


class AttemptSchema(Schema):
    """One attempt to run a job on an appliance, with its placement."""

    id = fields.String()
    number = fields.Integer()
    appliance_id = fields.String(
        attribute="own_appliance.id",
        allow_none=True,
        dump_default=None,
        **about("Null on a rented appliance."),
    )
    appliance_name = fields.String(
        attribute="place_name", **about("Of a rented appliance that of its offer.")
    )
    contract_id = fields.String(
        allow_none=True, **about("Of a rented appliance; null on an own one.")
    )
    region = fields.String(
        attribute="grant.region",
        dump_default="",
        **about("Of a rented appliance, as long as its contract lasts."),
    )
    node = fields.Nested(
        ApplianceNameSchema,
        allow_none=True,
        **about("Where it runs on the cluster whose connector the appliance is."),
    )
    state = fields.Enum(AttemptState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()
    gpu_uuids = fields.List(fields.String())
    gpu_slice = fields.Nested(SliceSchema, allow_none=True, **about("Null for whole GPUs."))
    placement = fields.Dict()
    staging = fields.Nested(
        StagingSchema, allow_none=True, **about("While it waits for its data; null otherwise.")
    )
    exit_code = fields.Integer(allow_none=True)
    bound_at = instant()
    assigned_at = instant()
    started_at = instant()
    finished_at = instant()
    health = fields.Enum(Health, by_value=True, **about("Of a service; empty without a check."))
    restarts = fields.Integer(**about("How often a service was started again."))
    log_bytes = fields.Integer()
    log_state = fields.Enum(LogState, by_value=True)
    log_is_full = fields.Boolean(**about("Later output was not stored."))


class DependencySchema(Schema):
    """A job that must end, or succeed, before another one starts."""

    job_id = fields.String()
    name = fields.String()
    condition = fields.String(
        metadata={"enum": [condition.value for condition in DependencyCondition]}
    )


class JobSchema(response_schema(JobSpec, SCHEMAS)):  # type: ignore[misc] # a class made at run time
    """A job with its latest attempt."""

    env: Any = None  # only the page of a job has it
    id = fields.String()
    tenant_id = fields.String()
    user_id = fields.String(allow_none=True)
    project_id = fields.String(allow_none=True)
    project = fields.String(attribute="project_name", allow_none=True, **about("Its name."))
    user_email = fields.Function(lambda job: job.user.email if job.user else None)
    kind = fields.Enum(JobKind, by_value=True)
    dependencies = fields.List(fields.Nested(DependencySchema))
    array_id = fields.String(allow_none=True, **about("The first task of its array."))
    array_index = fields.Integer(allow_none=True)
    array_size = fields.Integer()
    array_limit = fields.Integer(**about("Tasks that may run at once; 0 is any."))
    array_states = fields.Dict(
        keys=fields.String(),
        values=fields.Integer(),
        **about("Tasks by state, in lists with `is_collapsed`."),
    )
    revision = fields.Integer(**about("Of its service; each update adds one."))
    container_policy = fields.Enum(ContainerPolicy, by_value=True)
    requested_gpus = fields.Function(
        requested_text, **about("Such as `2`, or `8 GiB of a GPU`.", type="string")
    )
    requested_appliance_id = fields.String(attribute="appliance_id", allow_none=True)
    state = fields.Enum(JobState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()
    exit_code = fields.Integer(allow_none=True)
    submitted_at = instant()
    started_at = instant()
    finished_at = instant()
    stop_requested_at = instant()
    appliance_id = fields.String(
        attribute="attempt.own_appliance.id",
        allow_none=True,
        dump_default=None,
        **about("Of its latest attempt; null on a rented appliance."),
    )
    appliance_name = fields.Function(lambda job: job.attempt.place_name if job.attempt else None)
    contract_id = fields.String(
        attribute="attempt.contract_id",
        allow_none=True,
        dump_default=None,
        **about("Of its latest attempt; see there."),
    )
    node = fields.Nested(
        ApplianceNameSchema,
        attribute="attempt.node",
        allow_none=True,
        dump_default=None,
        **about("Of its latest attempt; see there."),
    )
    health = fields.Function(
        lambda job: job.attempt.health.value if job.attempt else "",
        **about("Of its latest attempt; see there.", type="string"),
    )
    restarts = fields.Function(
        lambda job: job.attempt.restarts if job.attempt else 0, metadata={"type": "integer"}
    )
    attempt = fields.Nested(AttemptSchema, allow_none=True)


class JobDetailSchema(JobSchema):
    """A job with its environment and all its attempts."""

    env = fields.Dict(keys=fields.String(), values=fields.String())
    secret_names = fields.List(
        fields.String(), **about("Variables whose values are never returned.")
    )
    attempts = fields.List(fields.Nested(AttemptSchema))


class EventSchema(Schema):
    """An event of a job."""

    id = fields.String()
    at = instant()
    state = fields.Enum(JobState, by_value=True)
    reason = fields.Enum(Reason, by_value=True)
    message = fields.String()

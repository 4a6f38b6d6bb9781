"""`/jobs/ID`: scale a service, update it instance by instance, and roll an update back."""

from functools import partial
from typing import Any

import msgspec
from marshmallow import Schema, fields

from jobqueue.jobs.shown import shown_job
from jobqueue.models import Job
from jobqueue.queue.service import get_job
from jobqueue.services.autoscaling.service import (
    scaling_status,
    set_autoscaling,
)
from jobqueue.services.rolling_updates import (
    FIXED,
    roll_back,
    update_progress,
    update_service,
)
from jobqueue.services.scaling import scale_service
from jobqueue.states import UpdateState
from portal.api.blueprint import APIBlueprint
from portal.api.job_requests import AutoscalingSchema, JobChangeSchema
from portal.api.job_schemas import JobDetailSchema
from portal.api.jobs import shown_jobs
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant
from portal.context import current_scope, database, now, portal
from protocol.autoscaling import MAX_INSTANCES, Autoscaling
from tenants.permissions import Permission

job_services = APIBlueprint(
    "Job services", "/jobs", "Instances and updates of services.", changes=Permission.SUBMIT_JOBS
)


class ScaleSchema(StrictSchema):
    """A number of instances."""

    instances = fields.Integer(
        strict=True, required=True, metadata={"minimum": 1, "maximum": MAX_INSTANCES}
    )


class JobUpdateSchema(JobChangeSchema):
    """The fields of a service that change; an empty object restarts its instances one by one."""

    class Meta:
        """Leave out what an update can't change."""

        exclude = tuple(sorted(FIXED))


class UpdateProgressSchema(Schema):
    """The latest update of a service."""

    revision = fields.Integer()
    state = fields.Enum(UpdateState, by_value=True)
    message = fields.String(**about("Why it failed."))
    changed = fields.List(fields.String())
    updated = fields.Integer(**about("Instances that have it."))
    total = fields.Integer()
    requested_at = instant()
    finished_at = instant()


class ScalingStatusSchema(Schema):
    """How a service scales, and its last decision."""

    policy = fields.Nested(AutoscalingSchema)
    awake = fields.Integer(**about("Instances that serve, start or wait."))
    ready = fields.Integer(**about("Those of them that serve."))
    wanted = fields.Integer(allow_none=True, **about("Of the last decision."))
    metric_value = fields.Float(
        allow_none=True, **about("What it saw of the metric, as a sum of all instances.")
    )
    why = fields.String()
    is_refused = fields.Boolean(**about("Whether it could not add instances."))
    decided_at = instant()
    woken_at = instant(**about("Since when it wakes."))
    wake_seconds = fields.Float(allow_none=True, **about("How long the last wake-up took."))


objects = Objects(job_services, "/<job_id>", read=get_job, answer=JobDetailSchema, shown=shown_jobs)
objects.shows_part(
    "Return how a service scales by itself, and its last decision.",
    scaling_status,
    "autoscaling",
    answer=ScalingStatusSchema,
    name="autoscaling",
)


@job_services.operation(
    "POST", "/<job_id>/autoscaling", body=AutoscalingSchema, answer=JobDetailSchema
)
def autoscale(job_id: str, body: dict[str, Any]) -> Job:
    """Let a service scale by itself, or change how."""
    policy = msgspec.convert(body, Autoscaling)
    with database() as session:
        return shown_job(
            session, set_autoscaling(session, current_scope(), job_id, policy, now=now())
        )


objects.acts(
    "Let a service scale by itself no longer; it has the instances that are awake.",
    partial(set_autoscaling, policy=None),
    "autoscaling/remove",
    name="remove_autoscaling",
)
objects.acts(
    "Add instances to a service, or stop those with the highest numbers.",
    scale_service,
    "scale",
    body=ScaleSchema,
)


@job_services.operation("POST", "/<job_id>/update", body=JobUpdateSchema, answer=JobDetailSchema)
def update(job_id: str, body: dict[str, Any]) -> Job:
    """Update the instances of a service one by one: the next follows when one is healthy."""
    with database() as session:
        scope, box = current_scope(), portal().secrets
        return shown_job(session, update_service(session, scope, job_id, body, box=box, now=now()))


objects.shows_part(
    "Return the latest update of a service.",
    update_progress,
    "update",
    answer=UpdateProgressSchema,
    name="progress",
)
objects.acts(
    "Give the instances of a service the values that they had before the latest update.",
    roll_back,
    "rollback",
)

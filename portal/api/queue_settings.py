"""`/tenants/ID/queue-settings`: how a tenant's jobs are placed, and what they may use."""

from typing import Any

from marshmallow import fields, validate

from jobqueue.jobs.queue_settings import DataRoot, QueueSettings, read_settings, set_settings
from jobqueue.placement.policies import DEFAULT_POLICY, POLICY_NAMES
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema
from tenants.models import Tenant
from tenants.permissions import Permission

queue_settings = APIBlueprint(
    "Queue settings",
    "/tenants",
    "How a tenant's jobs are placed, and what they may use.",
    changes=Permission.MANAGE_APPLIANCES,
)


class DataRootSchema(StrictSchema):
    """A folder of the appliances that jobs may mount; a writable one only as a whole."""

    path = fields.String(required=True)
    is_read_only = fields.Boolean(load_default=True)


class QueueSettingsSchema(StrictSchema):
    """The settings; null is no limit."""

    placement_policy = fields.String(
        load_default=DEFAULT_POLICY, validate=validate.OneOf(POLICY_NAMES)
    )
    max_gpus_per_user = fields.Integer(strict=True, load_default=None, allow_none=True)
    max_gpus = fields.Integer(strict=True, load_default=None, allow_none=True)
    allows_preemption = fields.Boolean(load_default=False)
    data_roots = fields.List(fields.Nested(DataRootSchema), load_default=list)
    job_retention_days = fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        metadata={
            "description": "Ended jobs are deleted after so many days, or earlier where the "
            "portal's setting is less; null is the portal's."
        },
    )


def _settings(*, data_roots: list[dict[str, Any]], **values: Any) -> QueueSettings:  # noqa: ANN401 - the body's
    return QueueSettings(**values, data_roots=[DataRoot(**root) for root in data_roots])


objects = Objects(
    queue_settings,
    "/<tenant_id>/queue-settings",
    read=read_settings,
    answer=QueueSettingsSchema,
    model=Tenant,
    body=QueueSettingsSchema,
    request=_settings,
)
objects.shows("Return how a tenant's jobs are placed, and what they may use.")
objects.replaces(
    "Set how a tenant's jobs are placed, and what they may use.\n\n"
    "They apply to waiting jobs from the next placement on.",
    set_settings,
)

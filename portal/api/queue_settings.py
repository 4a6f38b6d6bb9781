"""`/tenants/ID/queue-settings`: how a tenant's jobs are placed, and what they may use."""

from typing import Any

from marshmallow import fields, validate

from jobqueue.jobs.queue_settings import DataRoot, QueueSettings, read_settings, set_settings
from jobqueue.placement.policies import DEFAULT_POLICY, POLICY_NAMES
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema
from portal.context import current_scope, database
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


@queue_settings.operation(
    "GET", "/<tenant_id>/queue-settings", answer=QueueSettingsSchema, has_etag=True
)
def show(tenant_id: str) -> QueueSettings:
    """Return how a tenant's jobs are placed, and what they may use."""
    with database() as session:
        return read_settings(session, current_scope(), tenant_id)


@queue_settings.operation(
    "PUT",
    "/<tenant_id>/queue-settings",
    body=QueueSettingsSchema,
    answer=QueueSettingsSchema,
    has_etag=True,
)
def replace(body: dict[str, Any], tenant_id: str) -> QueueSettings:
    """Set how a tenant's jobs are placed, and what they may use.

    They apply to waiting jobs from the next placement on.
    """
    with database() as session:

        def read() -> QueueSettings:
            return read_settings(session, current_scope(), tenant_id)

        queue_settings.check_if_match(session, Tenant, tenant_id, read, QueueSettingsSchema)
        roots = [DataRoot(**root) for root in body.pop("data_roots")]
        settings = QueueSettings(**body, data_roots=roots)
        return set_settings(session, current_scope(), tenant_id, settings)

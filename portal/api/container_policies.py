"""`/tenants/ID/container-policies`: how the containers of jobs are confined."""

from typing import Any

from marshmallow import Schema, fields

from jobqueue.queue.container_policies import (
    DESCRIPTIONS,
    PolicyChoice,
    read_policies,
    set_policies,
)
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema
from portal.context import current_scope, database
from protocol.job_spec import ContainerPolicy
from tenants.models import Tenant
from tenants.permissions import Permission

container_policies = APIBlueprint(
    "Container policies",
    "/tenants",
    "How the containers of a tenant's jobs are confined.",
    changes=Permission.MANAGE_APPLIANCES,
)


class PolicySchema(Schema):
    """A container policy."""

    name = fields.Enum(ContainerPolicy, by_value=True)
    description = fields.String()


class PolicyChoiceSchema(StrictSchema):
    """The policies that jobs may use, and the one of jobs that name none."""

    allowed = fields.List(fields.Enum(ContainerPolicy, by_value=True), required=True)
    default = fields.Enum(ContainerPolicy, by_value=True, required=True)


class PolicyAnswerSchema(PolicyChoiceSchema):
    """The policies that jobs may use, and all that there are."""

    available = fields.List(fields.Nested(PolicySchema))


@container_policies.operation(
    "GET", "/<tenant_id>/container-policies", answer=PolicyAnswerSchema, has_etag=True
)
def show(tenant_id: str) -> dict[str, Any]:
    """Return the container policies that a tenant's jobs may use."""
    with database() as session:
        return _shaped(read_policies(session, current_scope(), tenant_id))


@container_policies.operation(
    "PUT",
    "/<tenant_id>/container-policies",
    body=PolicyChoiceSchema,
    answer=PolicyAnswerSchema,
    has_etag=True,
)
def replace(body: dict[str, Any], tenant_id: str) -> dict[str, Any]:
    """Set the container policies that a tenant's jobs may use.

    Jobs that were submitted before keep theirs.
    """
    with database() as session:

        def read() -> dict[str, Any]:
            return _shaped(read_policies(session, current_scope(), tenant_id))

        container_policies.check_if_match(session, Tenant, tenant_id, read, PolicyAnswerSchema)
        return _shaped(set_policies(session, current_scope(), tenant_id, PolicyChoice(**body)))


def _shaped(choice: PolicyChoice) -> dict[str, Any]:
    available = [{"name": name, "description": text} for name, text in DESCRIPTIONS.items()]
    return {"allowed": choice.allowed, "default": choice.default, "available": available}

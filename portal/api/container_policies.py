"""`/tenants/ID/container-policies`: how the containers of jobs are confined."""

from collections.abc import Sequence
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from jobqueue.jobs.settings import DESCRIPTIONS, PolicyChoice, read_policies, set_policies
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema
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


def _shown(_session: Session, choices: Sequence[PolicyChoice]) -> list[dict[str, Any]]:
    available = [{"name": name, "description": text} for name, text in DESCRIPTIONS.items()]
    return [
        {"allowed": choice.allowed, "default": choice.default, "available": available}
        for choice in choices
    ]


objects = Objects(
    container_policies,
    "/<tenant_id>/container-policies",
    read=read_policies,
    answer=PolicyAnswerSchema,
    shown=_shown,
    model=Tenant,
    body=PolicyChoiceSchema,
    request=PolicyChoice,
)
objects.shows("Return the container policies that a tenant's jobs may use.")
objects.replaces(
    "Set the container policies that a tenant's jobs may use.\n\n"
    "Jobs that were submitted before keep theirs.",
    set_policies,
)

"""`/gpu-partition-policies`: how the GPUs of a tenant are shared by jobs."""

from collections.abc import Sequence
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from jobqueue.partitions.checks import PolicyRequest
from jobqueue.partitions.fleet import Coverage
from jobqueue.partitions.isolation import ISOLATION, MODE_NAMES
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.partitions.service import (
    POLICY_SORTS,
    coverage_of,
    create_policy,
    delete_policy,
    get_policy,
    list_policies,
    preview_policy,
    summary_of,
    update_policy,
)
from portal.api.blueprint import APIBlueprint
from portal.api.job_placement import IsolationSchema
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_of, page_query, whole_list
from portal.api.spec_schemas import request_schema, response_schema
from portal.context import current_scope, database
from protocol.gpu_slices import PartitionMode
from tenants.permissions import Permission

gpu_partition_policies = APIBlueprint(
    "GPU partition policies",
    "/gpu-partition-policies",
    "How GPUs are shared by jobs: as a whole, by MIG, MPS or time slicing.",
    changes=Permission.MANAGE_APPLIANCES,
)


class PartitionPolicyRequestSchema(request_schema(PolicyRequest)):  # type: ignore[misc] # a class made at run time
    """A new partition policy, or the replacement of one."""


class CoverageSchema(Schema):
    """The GPUs that a policy covers: those that fit it, and no policy before it."""

    gpus = fields.Integer()
    busy_gpus = fields.Integer(**about("Those that get another mode once their jobs have ended."))
    appliances = fields.List(fields.String(), **about("Their names."))
    models = fields.List(fields.String())
    warnings = fields.List(fields.String(), **about("What won't work, and why."))
    text = fields.String(**about("The same in words."))


class PartitionPolicySchema(response_schema(PolicyRequest)):  # type: ignore[misc] # a class made at run time
    """A partition policy; the first in the order that fits a GPU counts."""

    id = fields.String()
    tenant_id = fields.String()
    position = fields.Integer(**about("Its place in the order, from 1."))
    summary = fields.String(**about("The mode in words."))
    coverage = fields.Nested(CoverageSchema)
    created_at = instant()


class ModeSchema(Schema):
    """A way to share a GPU."""

    mode = fields.Enum(PartitionMode, by_value=True)
    name = fields.String()
    isolation = fields.Nested(IsolationSchema)


class PreviewQuery(StrictSchema):
    """Which policy would be replaced."""

    policy_id = fields.String(load_default=None, **about("Of a policy; without, it is a new one."))


def _shown(session: Session, rows: Sequence[GPUPartitionPolicy]) -> list[dict[str, Any]]:
    coverages = coverage_of(session, rows)
    columns = GPUPartitionPolicy.__table__.columns.keys()
    return [
        {name: getattr(row, name) for name in columns}
        | {"summary": summary_of(row), "coverage": coverages[row.id]}
        for row in rows
    ]


objects = Objects(
    gpu_partition_policies,
    "/<policy_id>",
    read=get_policy,
    answer=PartitionPolicySchema,
    shown=_shown,
    model=GPUPartitionPolicy,
    # Without what changes with the fleet.
    etag=PartitionPolicySchema(exclude=("coverage",)),
    body=PartitionPolicyRequestSchema,
    request=PolicyRequest,
)
objects.lists(
    "List partition policies, in their order.",
    list_policies,
    query=page_query(POLICY_SORTS, default="position"),
)
objects.creates(
    "Add a partition policy.\n\n"
    "Idle GPUs change at once, others when their jobs have ended. What can't work is refused with "
    "the nearest thing that would.",
    create_policy,
)


@gpu_partition_policies.operation(
    "POST",
    "/preview",
    body=PartitionPolicyRequestSchema,
    query=PreviewQuery,
    answer=CoverageSchema,
    needs=Permission.VIEW,
)
def preview(query: dict[str, Any], body: dict[str, Any]) -> Coverage:
    """Return which GPUs a policy would cover, without saving it."""
    with database() as session:
        return preview_policy(session, current_scope(), PolicyRequest(**body), **query)


@gpu_partition_policies.operation("GET", "/modes", answer=page_of(ModeSchema))
def modes() -> dict[str, Any]:
    """List how GPUs can be shared, and what separates jobs on one GPU in each mode."""
    return whole_list(
        [
            {"mode": mode, "name": MODE_NAMES[mode], "isolation": isolation}
            for mode, isolation in ISOLATION.items()
        ]
    )


objects.shows("Return a partition policy.")
objects.replaces("Replace a partition policy, or move it in the order.", update_policy)
objects.deletes(
    "Delete a partition policy: its GPUs follow the next one that fits, or are whole.",
    delete_policy,
)

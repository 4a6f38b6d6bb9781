"""`/tenants/ID/queue-settings`: how a tenant's jobs are placed, and what they may use."""

from typing import Any

from marshmallow import fields, validate

from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import DataRoot, QueueSettings, read_settings, set_settings
from jobqueue.models import DEFAULT_FETCH_MINUTES
from jobqueue.placement.policies import DEFAULT_POLICY, POLICY_NAMES
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about
from protocol.gpu_slices import PartitionMode
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


class OrderSchema(StrictSchema):
    """Which waiting job is next; with `fifo`, by submission and priority, weights have no effect.

    A job's points are the sum of its priority, fair share, age and size, times their weights.
    """

    policy = fields.Enum(OrderPolicy, by_value=True, load_default=OrderPolicy.FIFO)
    half_life_days = fields.Float(
        load_default=7.0, **about("After so many days, usage counts half.")
    )
    priority_weight = fields.Integer(
        strict=True, load_default=1000, **about("The points of a job with the highest priority.")
    )
    fair_share_weight = fields.Integer(
        strict=True, load_default=1000, **about("The points of the user whose turn it is.")
    )
    age_weight = fields.Integer(
        strict=True, load_default=200, **about("The points of a day of waiting.")
    )
    size_weight = fields.Integer(
        strict=True,
        load_default=0,
        **about("The points of a job for the whole fleet; below 0: small first."),
    )
    gpu_usage_weight = fields.Float(
        load_default=None,
        allow_none=True,
        **about("Of a GPU in usage; null is 1, or 0 where there are no GPUs."),
    )
    cpu_usage_weight = fields.Float(
        load_default=None,
        allow_none=True,
        **about("Of a CPU core; null is 0, or 1 where there are no GPUs."),
    )
    memory_usage_weight = fields.Float(load_default=0.0, **about("Of a GiB of memory."))


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
        **about(
            "Ended jobs are deleted after so many days, or earlier where the "
            "portal's setting is less; null is the portal's."
        ),
    )
    ordering = fields.Nested(OrderSchema, load_default=lambda: OrderSchema().load({}))
    isolation_between_users = fields.Enum(
        PartitionMode,
        by_value=True,
        load_default=None,
        allow_none=True,
        **about(
            "The weakest mode in which jobs of different users share a GPU, `whole` "
            "for never. Null: any mode within a project, else `mig`. Under `mps` only jobs of one "
            "user share a GPU in any case."
        ),
    )
    isolation_between_projects = fields.Enum(
        PartitionMode,
        by_value=True,
        load_default=None,
        allow_none=True,
        **about("Likewise for jobs of different projects; null adds nothing."),
    )
    allows_gang_egress = fields.Boolean(
        load_default=False,
        **about(
            "Whether members of gangs with a private network also have the "
            "engine's bridge, by which they reach the outside."
        ),
    )
    allows_host_network = fields.Boolean(
        load_default=False,
        **about(
            "Whether jobs may use the network and RDMA devices of the appliance: "
            "for tenants that trust their users with its network."
        ),
    )
    encrypts_gang_networks = fields.Boolean(
        load_default=False,
        **about(
            "Whether packets of gangs are encrypted within a site, too; between "
            "sites they always are."
        ),
    )
    longest_fetch_minutes = fields.Integer(
        strict=True,
        load_default=DEFAULT_FETCH_MINUTES,
        **about("A job whose datasets take longer than this to fetch waits for them without GPUs."),
    )


def _settings(
    *,
    data_roots: list[dict[str, Any]],
    ordering: dict[str, Any],
    **values: Any,  # noqa: ANN401 - the body's
) -> QueueSettings:
    return QueueSettings(
        **values,
        data_roots=[DataRoot(**root) for root in data_roots],
        ordering=OrderSettings(**ordering),
    )


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

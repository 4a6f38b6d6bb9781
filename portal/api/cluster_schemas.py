"""Schemas of clusters and their nodes, as their connectors reported them last."""

from marshmallow import Schema, fields

from portal.api.schemas import about
from protocol.clusters import ClusterKind, NodeState
from tenants.fleet.states import EffectiveStatus


class ApplianceNameSchema(Schema):
    """An appliance that another object refers to."""

    id = fields.String()
    name = fields.String()


class ClusterQueueSchema(Schema):
    """A partition of Slurm, or a queue of Kueue."""

    name = fields.String()
    is_default = fields.Boolean(**about("Jobs that name none go there."))
    is_open = fields.Boolean(**about("It takes jobs."))
    time_limit_seconds = fields.Integer(**about("0 without a limit."))


class ClusterSchema(Schema):
    """The cluster of a connector."""

    kind = fields.Enum(ClusterKind, by_value=True)
    name = fields.String()
    version = fields.String(**about("Of the scheduler."))
    problem = fields.String(
        **about("Why it takes no jobs now, in its own words; empty if it does.")
    )
    runs_images = fields.Boolean(**about("If not, only jobs without an image run there."))
    needs_image = fields.Boolean(**about("Jobs without an image can't run."))
    waiting_jobs = fields.Integer(**about("Jobs of all its users that wait in its queue."))
    max_waiting = fields.Integer(**about("How many attempts Vedette may have waiting there."))
    queues = fields.List(fields.Nested(ClusterQueueSchema))


class ClusterNodeSchema(Schema):
    """A node with what the jobs of all users of its cluster have allocated."""

    name = fields.String(**about("On the cluster."))
    state = fields.Enum(NodeState, by_value=True)
    reason = fields.String(**about("Why it takes no jobs, in the words of the cluster."))
    queues = fields.List(fields.String())
    cpus = fields.Float(**about("Threads that jobs can allocate."))
    memory_bytes = fields.Integer()
    gpus = fields.Integer()
    gpu_model = fields.String(**about("Empty if the cluster names none."))
    gpu_memory_bytes = fields.Integer(**about("Of each; 0 if unknown."))
    allocated_cpus = fields.Float()
    allocated_memory_bytes = fields.Integer()
    allocated_gpus = fields.Integer()


class ListedNodeSchema(Schema):
    """A node of a cluster, and its appliance."""

    id = fields.String(allow_none=True, **about("Of its appliance; null if a quota leaves it out."))
    name = fields.String(**about("Of its appliance."))
    status = fields.Enum(EffectiveStatus, by_value=True, allow_none=True)
    node = fields.Nested(ClusterNodeSchema)

"""`/queue`: the waiting jobs in their order, and the tree of fair shares of the tenant."""

from typing import Any

from marshmallow import Schema, fields, validate

from jobqueue.fairshare.settings import OrderPolicy
from jobqueue.partitions.texts import requested_text
from jobqueue.queue.order import PROJECT, TENANT, USER, list_shares, list_waiting
from portal.api.blueprint import APIBlueprint
from portal.api.job_placement import PartSchema
from portal.api.schemas import PageQuery, about, envelope, instant, page_of
from portal.context import current_scope, database, now

queue = APIBlueprint("Queue", "/queue", "Who has had how much of the fleet, and who is next.")


class ShareSchema(Schema):
    """The tenant, a project or a user in a project."""

    depth = fields.Integer(**about("Below the tenant, which is 0."))
    kind = fields.String(validate=validate.OneOf([TENANT, PROJECT, USER]))
    id = fields.String(allow_none=True, **about("Null for none."))
    name = fields.String()
    shares = fields.Float(**about("In relation to its siblings."))
    normalized_shares = fields.Float(**about("Its part of theirs, 0 to 1."))
    usage = fields.Float(**about("Decayed, in the unit of the answer."))
    normalized_usage = fields.Float(**about("Its part of its siblings'."))
    level_fair_share = fields.Float(
        allow_none=True, **about("Normalized shares by normalized usage; null is infinite.")
    )
    dominant_share = fields.Float(
        **about("The largest part of a resource that its running jobs have.")
    )
    rank = fields.Integer(allow_none=True, **about("Of a user, from 1."))
    factor = fields.Float(allow_none=True, **about("Of a user: 1 is the first."))


class SharePageSchema(page_of(ShareSchema)):  # type: ignore[misc] # made at run time
    """A page of the tree, depth first, and how the queue uses it."""

    policy = fields.Enum(OrderPolicy, by_value=True)
    half_life_days = fields.Float()
    unit = fields.String(**about("Of usage, such as `GPU-hours`."))


class QueuedJobSchema(Schema):
    """A waiting job at its position in the queue."""

    position = fields.Integer(**about("From 1."))
    job_id = fields.String(attribute="job.id")
    name = fields.String(attribute="job.title")
    user_email = fields.Function(
        lambda queued: queued.job.user.email if queued.job.user else None,
        metadata={"type": ["string", "null"]},
    )
    project = fields.String(**about("Its name; empty without one."))
    gpus = fields.Function(
        lambda queued: queued.job.gpus * queued.job.nodes,
        **about("Of all members, if it is a gang.", type="integer"),
    )
    requested_gpus = fields.Function(
        lambda queued: requested_text(queued.job),
        **about("Such as `2`, or `8 GiB of a GPU`.", type="string"),
    )
    nodes = fields.Integer(attribute="job.nodes", **about("Members of its gang."))
    priority = fields.Integer(attribute="job.priority")
    submitted_at = instant(attribute="job.submitted_at")
    message = fields.String(attribute="job.message", **about("Why it waits."))
    points = fields.Float(**about("The sum of the parts."))
    parts = fields.List(fields.Nested(PartSchema))


@queue.operation("GET", "/jobs", query=PageQuery, answer=page_of(QueuedJobSchema))
def jobs(query: dict[str, Any]) -> dict[str, Any]:
    """List the jobs that wait for an appliance, the next one first.

    Jobs that wait for other jobs, or for a retry, are not in the queue.
    """
    with database() as session:
        return envelope(list_waiting(session, current_scope(), now=now(), **query))


@queue.operation("GET", "/shares", query=PageQuery, answer=SharePageSchema)
def shares(query: dict[str, Any]) -> dict[str, Any]:
    """List the tenant's projects and users with their shares and decayed usage.

    The rows are a tree, depth first; of siblings, the first served comes first.
    """
    with database() as session:
        tree = list_shares(session, current_scope(), now=now(), **query)
    return {
        **envelope(tree.page),
        "policy": tree.policy,
        "half_life_days": tree.half_life.total_seconds() / 86400,
        "unit": tree.unit,
    }

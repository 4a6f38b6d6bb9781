"""`/appliances`: enrolled hosts and nodes of clusters, their events, and the actions on them."""

from datetime import timedelta
from typing import Any

from marshmallow import Schema, fields, validate

from core.paging import MAX_PAGE_SIZE
from jobqueue.dispatch.appliance_lifecycle import (
    MAX_WAIT,
    BulkAction,
    BulkRequest,
    change_all,
    drain_progress,
    retire_idle_appliance,
    start_drain,
)
from jobqueue.jobs.quarantine import release_appliance
from jobqueue.rentals import RENTED_JOB_SORTS, RentedJob, list_rented_jobs
from jobqueue.states import AttemptState, JobState
from portal.api.appliance_schemas import ApplianceSchema, BriefApplianceSchema
from portal.api.blueprint import APIBlueprint
from portal.api.cluster_schemas import ListedNodeSchema
from portal.api.objects import Objects
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    sort_field,
)
from portal.context import current_scope, database, now
from protocol.health import HealthState
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance
from tenants.fleet.appliance_service import reinstate_appliance, revoke_appliance, undrain_appliance
from tenants.fleet.appliances import (
    SORTS,
    UNKNOWN,
    ApplianceFilter,
    Nodes,
    get_appliance,
    list_appliances,
)
from tenants.fleet.clusters import NODE_SORTS, list_nodes
from tenants.fleet.events import EVENT_SORTS, EventKind, list_events
from tenants.fleet.states import EffectiveStatus
from tenants.models import Appliance, ApplianceState
from tenants.permissions import Permission

appliances = APIBlueprint(
    "Appliances",
    "/appliances",
    "Enrolled hosts, and nodes of clusters.",
    changes=Permission.MANAGE_APPLIANCES,
)

objects = Objects(
    appliances,
    "/<appliance_id>",
    read=get_appliance,
    answer=ApplianceSchema,
    model=Appliance,
    # Without the fields that change with every heartbeat.
    etag=ApplianceSchema(
        exclude=(
            "inventory",
            "health",
            "gpu_processes",
            "cluster",
            "node",
            "status",
            "state",
            "health_state",
            "clock_skew_seconds",
            "last_seen_at",
            "agent_version",
            "access_point",
        )
    ),
)

_WAIT = validate.Range(0, MAX_WAIT.total_seconds())


class ApplianceQuery(PageQuery):
    """Filters of the list."""

    status = fields.Enum(
        EffectiveStatus,
        by_value=True,
        load_default=None,
        **about("By default all in service: neither retired nor revoked."),
    )
    state = fields.Enum(ApplianceState, by_value=True, load_default=None)
    health = fields.String(
        load_default=None,
        validate=validate.OneOf([*(state.value for state in HealthState), UNKNOWN]),
    )
    appliance_class = fields.String(load_default="")
    site = fields.String(load_default="")
    region = fields.String(load_default="")
    label = fields.String(load_default="", **about("`rack` or `rack=b12`."))
    gpu_model = fields.String(load_default="")
    search = fields.String(load_default="", **about("Text in name, site, region or GPU model."))
    nodes = fields.Enum(
        Nodes,
        by_value=True,
        load_default=None,
        **about("Whether nodes of clusters are listed; by default they are."),
    )
    connector = fields.String(
        load_default="", **about("Only the nodes of the cluster of this appliance, by its id.")
    )
    sort = sort_field(SORTS, default="name")


class NodeQuery(PageQuery):
    """The order of the list of nodes."""

    sort = sort_field(NODE_SORTS, default="name")


class ApplianceChangeSchema(StrictSchema):
    """The fields to change; omitted fields are unchanged."""

    name = fields.String()
    site = fields.String()
    region = fields.String()
    labels = fields.Dict(
        keys=fields.String(), values=fields.String(), **about("Replaces all existing labels.")
    )


class EventQuery(PageQuery):
    """Filters of the event list."""

    kind = fields.Enum(EventKind, by_value=True, load_default=None)
    sort = sort_field(EVENT_SORTS, default="-at")


class ApplianceEventSchema(Schema):
    """An event of an appliance."""

    id = fields.String()
    appliance_id = fields.String()
    at = instant()
    kind = fields.String()
    message = fields.String()
    details = fields.Dict(keys=fields.String())


class BulkRequestSchema(StrictSchema):
    """An action on several appliances."""

    appliance_ids = fields.List(
        fields.String(validate=validate.Length(max=36)),
        required=True,
        validate=validate.Length(min=1, max=MAX_PAGE_SIZE),
    )
    action = fields.Enum(BulkAction, by_value=True, required=True)
    labels = fields.Dict(
        keys=fields.String(),
        values=fields.String(allow_none=True),
        load_default=dict,
        **about("For `label`: labels to set by key; null removes the label."),
    )
    site = fields.String(load_default=None, allow_none=True, **about("For `move`."))
    region = fields.String(load_default=None, allow_none=True, **about("For `move`."))
    wait_seconds = fields.Float(
        load_default=None,
        allow_none=True,
        validate=_WAIT,
        **about("For `drain`: as for one appliance."),
    )


class BulkResultSchema(Schema):
    """The changed appliances, in the order of the request."""

    action = fields.Enum(BulkAction, by_value=True)
    items = fields.List(fields.Nested(BriefApplianceSchema))


class DrainRequestSchema(StrictSchema):
    """How long the appliance waits for its running jobs."""

    wait_seconds = fields.Float(
        load_default=None,
        allow_none=True,
        validate=_WAIT,
        **about(
            "Jobs that still run after this time are stopped and queued again; 0 "
            "moves them now. Null lets them run to their end."
        ),
    )


class DrainingJobSchema(Schema):
    """A job that still runs on a drained appliance; those of customers have no name."""

    id = fields.String()
    name = fields.String()
    state = fields.Enum(JobState, by_value=True)
    contract_id = fields.String(
        allow_none=True,
        dump_default=None,
        **about("Of a job of another tenant that rents the appliance."),
    )


class RentedJobSchema(Schema):
    """A job of another tenant that rents the appliance: all that its provider sees of it."""

    id = fields.String()
    contract_id = fields.String()
    state = fields.Enum(AttemptState, by_value=True)
    gpu_uuids = fields.List(fields.String())
    since = instant()


class RentedJobQuery(PageQuery):
    """The order of the list of rented jobs."""

    sort = sort_field(RENTED_JOB_SORTS, default="since")


class DrainProgressSchema(Schema):
    """How far the draining of an appliance is."""

    is_drained = fields.Boolean()
    drained_at = instant()
    deadline_at = instant(**about("When the jobs that are left move."))
    is_done = fields.Boolean(dump_default=False, **about("Whether it is drained and no job runs."))
    job_count = fields.Integer(**about("Jobs that ran when it was drained."))
    jobs_left = fields.Integer(**about("Those of them that still run."))
    jobs = fields.List(fields.Nested(DrainingJobSchema))


@appliances.operation("GET", query=ApplianceQuery, answer=page_of(BriefApplianceSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List appliances, without inventory and health."""
    paging = {name: query.pop(name) for name in ("page", "page_size", "sort")}
    health = query.pop("health")
    if health is not None and health != UNKNOWN:
        health = HealthState(health)
    wanted = ApplianceFilter(health=health, **query)
    with database() as session:
        return envelope(list_appliances(session, current_scope(), wanted, **paging))


@appliances.operation("POST", "/bulk", body=BulkRequestSchema, answer=BulkResultSchema)
def bulk(body: dict[str, Any]) -> dict[str, Any]:
    """Drain, undrain, label, move, retire or reinstate several appliances.

    All of them are changed or none. `errors` has the reason by the id of each appliance that
    can't be changed.
    """
    request = BulkRequest(**body)
    with database() as session:
        changed = change_all(session, current_scope(), request, now=now())
        return {"action": request.action, "items": changed}


objects.shows("Return an appliance with its inventory and health; other responses leave them out.")


@appliances.operation(
    "PATCH",
    "/<appliance_id>",
    body=ApplianceChangeSchema,
    answer=BriefApplianceSchema,
    etag=objects.etag,
)
def change(appliance_id: str, body: dict[str, Any]) -> Appliance:
    """Change the name, site, region or labels of an appliance."""
    changes = ApplianceChanges(**body)
    with database() as session:
        objects.check_if_match(session, appliance_id)
        return change_appliance(session, current_scope(), appliance_id, changes, now=now())


objects.lists(
    "List the events of an appliance, newest first.",
    list_events,
    query=EventQuery,
    path="/<appliance_id>/events",
    answer=ApplianceEventSchema,
    name="events",
)


objects.lists(
    "List the nodes of the cluster of which the appliance is the connector.",
    list_nodes,
    query=NodeQuery,
    path="/<appliance_id>/nodes",
    answer=ListedNodeSchema,
    name="nodes",
)


@appliances.operation(
    "POST", "/<appliance_id>/drain", body=DrainRequestSchema, answer=BriefApplianceSchema
)
def drain(appliance_id: str, body: dict[str, Any]) -> Appliance:
    """Stop scheduling jobs on the appliance; running jobs continue, or move after a time.

    Call it again to change that time.
    """
    seconds = body["wait_seconds"]
    wait = None if seconds is None else timedelta(seconds=seconds)
    with database() as session:
        return start_drain(session, current_scope(), appliance_id, wait=wait, now=now())


@appliances.operation("GET", "/<appliance_id>/drain", answer=DrainProgressSchema)
def show_drain(appliance_id: str) -> dict[str, Any]:
    """Return how far the draining of the appliance is."""
    with database() as session:
        appliance = get_appliance(session, current_scope(), appliance_id)
        progress = drain_progress(session, appliance)
        if progress is None:
            return {"is_drained": False, "job_count": 0, "jobs_left": 0, "jobs": []}
        jobs = [
            {
                "id": job.id,
                "name": job.name,
                "state": JobState(job.state.value),
                "contract_id": job.contract_id if isinstance(job, RentedJob) else None,
            }
            for job in progress.jobs
        ]
    names = ("drained_at", "deadline_at", "is_done", "job_count", "jobs_left")
    return {"is_drained": True, "jobs": jobs, **{name: getattr(progress, name) for name in names}}


objects.lists(
    "List the jobs of tenants that rent the appliance and have resources of it now.",
    list_rented_jobs,
    query=RentedJobQuery,
    path="/<appliance_id>/rented-jobs",
    answer=RentedJobSchema,
    name="rented_jobs",
)


actions = Objects(appliances, "/<appliance_id>", read=get_appliance, answer=BriefApplianceSchema)
actions.acts("Schedule jobs on the appliance again.", undrain_appliance, "undrain")
actions.acts(
    "Release the appliance from quarantine, so that it gets jobs; 409 if it is not quarantined.",
    release_appliance,
    "release",
)
actions.acts(
    "Take the appliance out of service and retain its history; 409 while jobs run on it.",
    retire_idle_appliance,
    "retire",
)
actions.acts("Return a retired appliance to service.", reinstate_appliance, "reinstate")
actions.acts(
    "Permanently revoke the appliance's identity; the portal rejects its agent from now on.",
    revoke_appliance,
    "revoke",
)

"""`/agent-rollouts`: updates of a tenant's agents, a share of each site at a time."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    instant,
    page_query,
    sort_field,
)
from portal.context import current_scope, database, now, portal
from portal.installer.wheelhouse import agent_packages
from tenants.fleet.rollouts import (
    DEFAULT_SOAK_SECONDS,
    DEFAULT_STAGE_PERCENTS,
    MAX_SITES,
    MAX_SOAK_SECONDS,
    ROLLOUT_SORTS,
    UPDATE_SORTS,
    RolloutRequest,
    cancel_rollout,
    get_rollout,
    list_rollouts,
    list_updates,
    pause_rollout,
    resume_rollout,
    start_rollout,
    update_counts,
    version_counts,
)
from tenants.models import AgentRollout, ApplianceUpdateState, RolloutState
from tenants.permissions import Permission

agent_rollouts = APIBlueprint(
    "Agent rollouts",
    "/agent-rollouts",
    "Updates of agents to the portal's version, a share of each site at a time.",
    changes=Permission.MANAGE_APPLIANCES,
)


class AgentRolloutSchema(Schema):
    """A rollout, with the number of its appliances by state."""

    id = fields.String()
    tenant_id = fields.String()
    version = fields.String()
    sites = fields.List(fields.String(), **about("All sites if empty."))
    stage_percents = fields.List(fields.Integer())
    stage = fields.Integer(**about("The current stage, counted from 0."))
    soak_seconds = fields.Integer()
    soaking_since = instant()
    max_failures = fields.Integer()
    state = fields.Enum(RolloutState, by_value=True)
    reason = fields.String(**about("Why it is paused."))
    counts = fields.Dict(keys=fields.String(), values=fields.Integer())
    created_at = instant()
    ended_at = instant()


class AgentRolloutRequestSchema(StrictSchema):
    """A rollout to start."""

    sites = fields.List(
        fields.String(),
        load_default=list,
        validate=validate.Length(max=MAX_SITES),
        **about("The sites to update; all if empty."),
    )
    stage_percents = fields.List(
        fields.Integer(strict=True),
        load_default=list(DEFAULT_STAGE_PERCENTS),
        **about("The share of each site that is updated after each stage."),
    )
    soak_seconds = fields.Integer(
        strict=True,
        load_default=DEFAULT_SOAK_SECONDS,
        validate=validate.Range(min=0, max=MAX_SOAK_SECONDS),
        **about("How long a stage must stay healthy before the next starts."),
    )
    max_failures = fields.Integer(
        strict=True,
        load_default=0,
        validate=validate.Range(min=0, max=1_000_000),
        **about("Failed updates that don't pause the rollout."),
    )


class ApplianceUpdateSchema(Schema):
    """An appliance in a rollout."""

    appliance_id = fields.String()
    appliance_name = fields.String(attribute="appliance.name")
    site = fields.String(attribute="appliance.site")
    stage = fields.Integer()
    state = fields.Enum(ApplianceUpdateState, by_value=True)
    message = fields.String()
    from_version = fields.String()
    agent_version = fields.String(attribute="appliance.agent_version")
    started_at = instant()
    ended_at = instant()


class UpdateQuerySchema(PageQuery):
    """Filter and order of the appliances of a rollout."""

    state = fields.Enum(ApplianceUpdateState, by_value=True, load_default=None)
    sort = sort_field(UPDATE_SORTS, default="")


class AgentVersionSchema(Schema):
    """A version of the agent, and how many appliances run it."""

    version = fields.String()
    count = fields.Integer()
    updatable = fields.Integer(**about("Of these, with the update service."))


def with_counts(session: Session, rollouts: Sequence[AgentRollout]) -> list[dict[str, Any]]:
    """Return rollouts with the number of their appliances by state."""
    counts = update_counts(session, rollouts)
    return [
        {column.key: getattr(rollout, column.key) for column in rollout.__table__.columns}
        | {"counts": {state.value: count for state, count in counts[rollout.id].items()}}
        for rollout in rollouts
    ]


objects = Objects(
    agent_rollouts,
    "/<rollout_id>",
    read=get_rollout,
    answer=AgentRolloutSchema,
    shown=with_counts,
    model=AgentRollout,
)
objects.lists(
    "List rollouts, the newest first.",
    list_rollouts,
    query=page_query(ROLLOUT_SORTS, default="-created_at"),
)


@agent_rollouts.operation(
    "POST",
    body=AgentRolloutRequestSchema,
    answer=AgentRolloutSchema,
    status=HTTPStatus.CREATED,
)
def create(body: dict[str, Any]) -> dict[str, Any]:
    """Start to update the agents that have another version than the portal's packages."""
    with database() as session:
        rollout = start_rollout(
            session,
            current_scope(),
            RolloutRequest(**body),
            packages=agent_packages(portal().settings),
            now=now(),
        )
        return with_counts(session, [rollout])[0]


objects.lists(
    "List the versions of the agents that are in service.",
    version_counts,
    path="/versions",
    answer=AgentVersionSchema,
    name="versions",
)
objects.shows("Return a rollout.", has_etag=False)
objects.lists(
    "List the appliances of a rollout, by stage and name.",
    list_updates,
    query=UpdateQuerySchema,
    path="/<rollout_id>/appliances",
    answer=ApplianceUpdateSchema,
    name="list_appliances",
)
objects.acts("Start no more updates; those that have started go on.", pause_rollout, "pause")
objects.acts("Go on, and accept the updates that have failed.", resume_rollout, "resume")
objects.acts("End a rollout; appliances that wait stay as they are.", cancel_rollout, "cancel")

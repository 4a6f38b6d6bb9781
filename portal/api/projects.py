"""`/projects`: the projects of a tenant, their members and quotas, and what they use."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from jobqueue.projects.models import Project, QuotaResource
from jobqueue.projects.quotas import MAX_AMOUNT, MAX_QUOTAS, QuotaRequest, quotas_of
from jobqueue.projects.service import (
    ProjectRequest,
    archive_project,
    change_project,
    create_project,
    get_project,
    list_members,
    list_projects,
    remove_member,
    restore_project,
    set_member,
    set_quotas,
)
from jobqueue.queue.project_use import use_of_projects
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant
from portal.context import current_scope, database
from tenants.permissions import Permission
from tenants.scope import Scope

projects = APIBlueprint(
    "Projects",
    "/projects",
    "Groups of a tenant's users, with shares and quotas.",
    changes=Permission.MANAGE_PROJECTS,
)


class ProjectQuery(StrictSchema):
    """Which projects are listed."""

    is_archived = fields.Boolean(
        load_default=False, **about("Whether archived ones are listed, too.")
    )


class ProjectRequestSchema(StrictSchema):
    """A new project."""

    name = fields.String(required=True, **about("Unique in the tenant."))
    parent = fields.String(
        load_default="", **about("The project above it, by name or id; empty for the tenant.")
    )
    description = fields.String(load_default="")
    shares = fields.Integer(
        load_default=1, strict=True, **about("What it gets in relation to its siblings.")
    )
    budget_label = fields.String(load_default="", **about("By which reports group projects."))


class ProjectChangeSchema(StrictSchema):
    """The fields of a project that change."""

    name = fields.String()
    parent = fields.String()
    description = fields.String()
    shares = fields.Integer(strict=True)
    budget_label = fields.String()


def _limit(description: str) -> fields.Integer:
    return fields.Integer(
        strict=True,
        allow_none=True,
        load_default=None,
        validate=validate.Range(0, MAX_AMOUNT),
        **about(f"{description}; null for no limit."),
    )


class ProjectQuotaSchema(StrictSchema):
    """The quota of one resource; amounts are GPUs, cores or bytes."""

    resource = fields.Enum(QuotaResource, by_value=True, required=True)
    gpu_model = fields.String(
        load_default="", **about("A word of the models that it counts, such as H100; empty: all.")
    )
    guaranteed = fields.Integer(
        load_default=0,
        strict=True,
        validate=validate.Range(0, MAX_AMOUNT),
        **about("What the project always gets."),
    )
    maximum = _limit("The most that it gets")
    lending_limit = _limit("How much of its idle guarantee others may borrow")
    borrowing_limit = _limit("How much it may use above its guarantee")


class ResourceUseSchema(ProjectQuotaSchema):
    """What a project and those below it use now of one resource, and its quota."""

    used = fields.Float()
    borrowed = fields.Float(**about("Above its guarantee."))
    lent = fields.Float(**about("What others may borrow of its guarantee."))
    total = fields.Float(**about("What the tenant has."))


class ProjectSchema(Schema):
    """A project with its place in the tree and what it uses now."""

    id = fields.String(attribute="project.id")
    tenant_id = fields.String(attribute="project.tenant_id")
    name = fields.String(attribute="project.name")
    parent_id = fields.String(attribute="project.parent_id", allow_none=True)
    parent = fields.String(attribute="parent_name", allow_none=True)
    depth = fields.Integer(**about("0 directly below the tenant."))
    description = fields.String(attribute="project.description")
    shares = fields.Integer(attribute="project.shares")
    budget_label = fields.String(attribute="project.budget_label")
    created_at = instant(attribute="project.created_at")
    archived_at = instant(attribute="project.archived_at")
    running_jobs = fields.Integer()
    waiting_jobs = fields.Integer()
    use = fields.List(fields.Nested(ResourceUseSchema))


class ProjectMemberRequestSchema(StrictSchema):
    """A user to add to a project, or whose membership changes."""

    user = fields.String(required=True, **about("Email address or id."))
    shares = fields.Integer(load_default=1, strict=True)
    is_default = fields.Boolean(
        load_default=None,
        allow_none=True,
        **about(
            "Whether jobs of the user that name no project belong to it; null is "
            "so for the first project of a user."
        ),
    )


class ProjectMemberSchema(Schema):
    """A member of a project."""

    user_id = fields.String()
    email = fields.String(attribute="user.email")
    name = fields.String(attribute="user.name")
    shares = fields.Integer()
    is_default = fields.Boolean()


class QuotaListSchema(StrictSchema):
    """All quotas of a project."""

    quotas = fields.List(
        fields.Nested(ProjectQuotaSchema), required=True, validate=validate.Length(max=MAX_QUOTAS)
    )


def _with_use(session: Session, rows: Sequence[Project]) -> list[Any]:
    tenant_ids = {row.tenant_id for row in rows}
    uses = {
        use.project.id: use
        for tenant_id in tenant_ids
        for use in use_of_projects(session, tenant_id, is_archived=True)
    }
    return [uses[row.id] for row in rows]


_FIXED = ("id", "name", "parent_id", "description", "shares", "budget_label", "archived_at")
objects = Objects(
    projects,
    "/<project_id>",
    read=get_project,
    answer=ProjectSchema,
    shown=_with_use,
    model=Project,
    # Without what its jobs change.
    etag=ProjectSchema(only=_FIXED),
    body=ProjectRequestSchema,
    request=ProjectRequest,
)
objects.lists(
    "List the projects of the tenant, each before those below it.",
    list_projects,
    query=ProjectQuery,
)
objects.creates("Create a project.", create_project)
objects.shows("Return a project with its quotas and what it uses.")


@projects.operation(
    "PATCH",
    "/<project_id>",
    body=ProjectChangeSchema,
    answer=ProjectSchema,
    etag=objects.etag,
)
def change(project_id: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - what the schema shows
    """Change a project; what is left out stays."""
    with database() as session:
        objects.check_if_match(session, project_id)
        project = change_project(session, current_scope(), project_id, body)
        return _with_use(session, [project])[0]


objects.acts(
    "Archive a project, which then accepts no jobs and has no quotas.", archive_project, "archive"
)
objects.acts("Take a project back from the archive.", restore_project, "restore")


def read_quotas(session: Session, scope: Scope, project_id: str) -> dict[str, Any]:
    """Return the quotas of a project."""
    project = get_project(session, scope, project_id)
    return {"quotas": quotas_of(session, project.id)}


def replace_quotas(
    session: Session, scope: Scope, project_id: str, requests: Sequence[QuotaRequest]
) -> dict[str, Any]:
    """Set the quotas of a project."""
    return {"quotas": set_quotas(session, scope, project_id, requests)}


quotas = Objects(
    projects,
    "/<project_id>/quotas",
    read=read_quotas,
    answer=QuotaListSchema,
    model=Project,
    body=QuotaListSchema,
    request=lambda quotas: [QuotaRequest(**fields_of_quota) for fields_of_quota in quotas],
)
quotas.shows("Return the quotas of a project.", name="show_quotas")
quotas.replaces(
    "Set all quotas of a project.\n\nA guarantee that exceeds what the tenant, or the project "
    "above, has is refused with the nearest that works.",
    replace_quotas,
    name="set_quotas",
)
objects.lists(
    "List the members of a project.",
    list_members,
    path="/<project_id>/members",
    answer=ProjectMemberSchema,
    name="list_members",
)
objects.acts(
    "Add a user to a project, or change their membership.",
    set_member,
    "members",
    body=ProjectMemberRequestSchema,
    answer=ProjectMemberSchema,
    name="save_member",
)


@projects.operation("POST", "/<project_id>/members/<user_id>/remove", status=HTTPStatus.NO_CONTENT)
def delete_member(project_id: str, user_id: str) -> None:
    """Remove a user from a project; their jobs go on."""
    with database() as session:
        remove_member(session, current_scope(), project_id, user_id)

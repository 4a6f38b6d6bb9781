"""Create, change, archive and read the projects of a tenant, and their members.

All changes of one tenant's projects wait for each other, so that the tree and the sums of quotas
stay right. Plans of placement that were made before are void.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from jobqueue.models import Job
from jobqueue.projects.models import (
    MAX_DESCRIPTION_LENGTH,
    MAX_NAME_LENGTH,
    Project,
    ProjectMember,
    ProjectQuota,
)
from jobqueue.projects.quotas import QuotaRequest, guarantee_problem, quotas_of, replace_quotas
from jobqueue.projects.tree import ProjectTree
from jobqueue.states import JobState
from tenants.checks import raise_if_invalid
from tenants.models import Membership, Tenant, User
from tenants.permissions import Permission
from tenants.quotas import count_rows
from tenants.scope import Scope

MAX_PROJECTS = 500
MAX_SHARES = 1_000_000
NAME_TAKEN = "name_taken"
_MAX_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRequest:
    """A project as an admin enters it; `parent` is a name or an id, "" the tenant."""

    name: str
    parent: str = ""
    description: str = ""
    shares: int = 1
    budget_label: str = ""


def list_projects(session: Session, scope: Scope, *, is_archived: bool = False) -> list[Project]:
    """Return the projects in the scope, each before those below it."""
    projects = [project for project, _ in _read_tree(session, scope).walk()]
    return [project for project in projects if is_archived or project.archived_at is None]


def get_project(session: Session, scope: Scope, name_or_id: str) -> Project:
    """Return a project by its id or name; raise `NotFoundError` if the scope has none."""
    return _read_tree(session, scope).get(name_or_id)


def create_project(
    session: Session, scope: Scope, request: ProjectRequest, *, now: datetime
) -> Project:
    """Create a project of the scope's tenant.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the name is taken, or the tenant has too many projects.
    """
    tenant_id, tree = _lock_projects(session, scope)
    if len(tree.by_id) >= MAX_PROJECTS:
        raise ConflictError(f"The tenant has {MAX_PROJECTS} projects, which is the most.")
    values = _checked(tree, request, project=None)
    project = Project(tenant_id=tenant_id, created_at=now, **values)
    session.add(project)
    session.flush()
    return project


def change_project(
    session: Session, scope: Scope, name_or_id: str, changes: Mapping[str, Any]
) -> Project:
    """Change fields of a project, those of `ProjectRequest`.

    Raises:
        InvalidInputError: names every invalid field, or the circle that the tree would have.
        ConflictError: the name is taken.
    """
    _, tree = _lock_projects(session, scope)
    project = tree.get(name_or_id)
    present = ProjectRequest(
        name=project.name,
        parent=project.parent_id or "",
        description=project.description,
        shares=project.shares,
        budget_label=project.budget_label,
    )
    values = _checked(tree, replace(present, **changes), project=project)
    has_moved = values["parent_id"] != project.parent_id
    for name, value in values.items():
        setattr(project, name, value)
    session.flush()
    problem = guarantee_problem(session, _read_tree(session, scope), project) if has_moved else None
    if problem is not None:
        _, sentence = problem
        raise InvalidInputError(sentence, errors={"parent": [sentence]})
    return project


def set_quotas(
    session: Session, scope: Scope, name_or_id: str, requests: Sequence[QuotaRequest]
) -> Sequence[ProjectQuota]:
    """Replace the quotas of a project; see `replace_quotas` for errors."""
    _, tree = _lock_projects(session, scope)
    project = tree.get(name_or_id)
    if project.archived_at is not None:
        raise ConflictError(f"{project.name!r} is archived. Restore it to set its quotas.")
    replace_quotas(session, tree, project, requests)
    return quotas_of(session, project.id)


def archive_project(session: Session, scope: Scope, name_or_id: str, *, now: datetime) -> Project:
    """Archive a project: it accepts no jobs, and loses its quotas.

    Raises:
        ConflictError: it has jobs that have not ended, or projects below it.
    """
    _, tree = _lock_projects(session, scope)
    project = tree.get(name_or_id)
    below = [child.name for child in tree.children(project.id) if child.archived_at is None]
    if below:
        names = ", ".join(below)
        raise ConflictError(f"{project.name!r} has projects below it: {names}. Archive them first.")
    active = [state for state in JobState if not state.is_final]
    jobs = count_rows(session, Job.project_id == project.id, Job.state.in_(active))
    if jobs:
        raise ConflictError(
            f"{project.name!r} has {jobs} {'job' if jobs == 1 else 'jobs'} that have not ended. "
            "Stop them, or wait for their end.",
            code="has_jobs",
        )
    replace_quotas(session, tree, project, ())
    project.archived_at = project.archived_at or now
    session.flush()
    return project


def restore_project(session: Session, scope: Scope, name_or_id: str) -> Project:
    """Take a project back from the archive.

    Raises:
        InvalidInputError: its parent is archived.
    """
    _, tree = _lock_projects(session, scope)
    project = tree.get(name_or_id)
    if project.archived_at is None:
        return project
    if project.parent_id is not None:
        tree.check_parent(project, tree.by_id[project.parent_id])
    project.archived_at = None
    session.flush()
    return project


def list_members(session: Session, scope: Scope, project: str) -> Sequence[ProjectMember]:
    """Return the members of a project, by email address."""
    project_id = get_project(session, scope, project).id
    statement = select(ProjectMember).where(ProjectMember.project_id == project_id)
    ordered = statement.join(User, User.id == ProjectMember.user_id).order_by(User.email)
    return session.scalars(ordered).unique().all()


def set_member(
    session: Session,
    scope: Scope,
    project: str,
    user: str,
    *,
    shares: int = 1,
    is_default: bool | None = None,
) -> ProjectMember:
    """Add a user to a project, or change their membership.

    Args:
        session: the session.
        scope: of an admin.
        project: its id or name.
        user: the user's id or email address.
        shares: what the user gets in relation to other members.
        is_default: whether their jobs belong to this project if they name none; None lets that be
            so if they have no such project yet.

    Raises:
        InvalidInputError: the tenant has no such user, or `shares` is out of range.
    """
    tenant_id, tree = _lock_projects(session, scope)
    target = tree.get(project)
    errors = (
        {"shares": [], "user": []}
        if 1 <= shares <= MAX_SHARES
        else {"shares": [f"shares is {shares}; enter 1 to {MAX_SHARES}."]}
    )
    wanted = or_(User.id == user, User.email == user.strip().lower())
    in_tenant = select(User.id).join(Membership, Membership.user_id == User.id)
    user_id = session.scalar(in_tenant.where(Membership.tenant_id == tenant_id, wanted))
    if user_id is None:
        errors["user"] = [f"There is no user {user[:100]!r} in this tenant. Invite them first."]
    raise_if_invalid(errors, "The member was not saved")
    memberships = _memberships(session, tenant_id, user_id or "")
    others = [membership for membership in memberships if membership.project_id != target.id]
    member = next((other for other in memberships if other.project_id == target.id), None)
    if member is None:
        member = ProjectMember(tenant_id=tenant_id, project_id=target.id, user_id=user_id)
        session.add(member)
    member.shares = shares
    if is_default is None:
        is_default = member.is_default or not any(other.is_default for other in others)
    member.is_default = is_default
    for other in others if is_default else ():
        other.is_default = False
    session.flush()
    session.refresh(member)
    return member


def remove_member(session: Session, scope: Scope, project: str, user: str) -> None:
    """Remove a user, by id or email address, from a project; their jobs there go on."""
    _, tree = _lock_projects(session, scope)
    target = tree.get(project)
    wanted = or_(User.id == user, User.email == user.strip().lower())
    statement = select(ProjectMember).join(User, User.id == ProjectMember.user_id)
    member = (
        session.scalars(statement.where(ProjectMember.project_id == target.id, wanted))
        .unique()
        .first()
    )
    if member is None:
        raise NotFoundError.of(f"member of {target.name!r}", user)
    session.delete(member)
    session.flush()


def usable_projects(session: Session, scope: Scope) -> list[Project]:
    """Return the projects that the user may submit jobs to, each before those below it."""
    tree = _read_tree(session, scope)
    if scope.allows(Permission.STOP_ANY_JOB):
        usable = set(tree.by_id)
    else:
        memberships = _memberships(session, scope.require_tenant(), scope.user_id)
        usable = {membership.project_id for membership in memberships}
    return [
        project
        for project, _ in tree.walk()
        if project.id in usable and project.archived_at is None
    ]


def default_project(session: Session, scope: Scope) -> Project | None:
    """Return the project of the user's jobs that name none; None if they have no such project."""
    for membership in _memberships(session, scope.require_tenant(), scope.user_id):
        if membership.is_default and membership.project.archived_at is None:
            return membership.project
    return None


def project_for_job(session: Session, scope: Scope, wanted: str | None) -> Project | None:
    """Return the project of a new job, by id or name; without one the user's default.

    Raises:
        InvalidInputError: there is none, or the user may not submit jobs to it; lists those that
            they may use.
    """
    if not wanted:
        return default_project(session, scope)
    usable = usable_projects(session, scope)
    for project in usable:
        if wanted in {project.id, project.name}:
            return project
    names = ", ".join(project.name for project in usable[:_MAX_LISTED])
    rest = f" and {len(usable) - _MAX_LISTED} more" if len(usable) > _MAX_LISTED else ""
    advice = f"Use one of: {names}{rest}." if names else "Ask an admin to add you to a project."
    project_of_others = _read_tree(session, scope).find(wanted)
    if project_of_others is None:
        error = f"There is no project {wanted[:100]!r}. {advice}"
    elif project_of_others.archived_at is not None:
        error = f"The project {project_of_others.name!r} is archived. {advice}"
    else:
        error = f"You are not a member of {project_of_others.name!r}. {advice}"
    raise InvalidInputError(error, errors={"project": [error]})


def _read_tree(session: Session, scope: Scope) -> ProjectTree:
    """Return the projects in the scope as a tree."""
    scope.require(Permission.VIEW)
    return ProjectTree(session.scalars(scope.select(select(Project), Project)))


def _lock_projects(session: Session, scope: Scope) -> tuple[str, ProjectTree]:
    """Lock the tenant's projects until the transaction ends; return the tenant and their tree."""
    scope.require(Permission.MANAGE_PROJECTS)
    tenant_id = scope.require_tenant()
    generation = Tenant.placement_generation + 1
    session.execute(
        update(Tenant).where(Tenant.id == tenant_id).values(placement_generation=generation),
        execution_options={"synchronize_session": False},
    )
    return tenant_id, _read_tree(session, scope)


def _checked(
    tree: ProjectTree, request: ProjectRequest, *, project: Project | None
) -> dict[str, Any]:
    """Return the columns of a valid request."""
    name = request.name.strip()
    values = asdict(request) | {
        "name": name,
        "description": request.description.strip(),
        "budget_label": request.budget_label.strip(),
    }
    raise_if_invalid(_errors(values), f"The project {name[:MAX_NAME_LENGTH]!r} can't be saved")
    for other in tree.by_id.values():
        if other is not project and other.name.casefold() == name.casefold():
            archived = ", which is archived" if other.archived_at else ""
            taken = f"There is a project {other.name!r} already{archived}. Use another name."
            raise ConflictError(taken, code=NAME_TAKEN, errors={"name": [taken]})
    parent = tree.find(values.pop("parent"))
    if parent is None and request.parent:
        error = f"There is no project {request.parent[:MAX_NAME_LENGTH]!r}."
        raise_if_invalid({"parent": [error]}, "The parent is unknown")
    if parent is not None:
        tree.check_parent(project, parent)
    return values | {"parent_id": None if parent is None else parent.id}


def _errors(values: Mapping[str, Any]) -> dict[str, list[str]]:
    name, shares = values["name"], values["shares"]
    errors: dict[str, list[str]] = {"name": [], "shares": []}
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable() or "/" in name:
        advice = f"use up to {MAX_NAME_LENGTH} characters without '/'"
        errors["name"] = [f"{name[:MAX_NAME_LENGTH]!r} is not a name; {advice}."]
    if not 1 <= shares <= MAX_SHARES:
        errors["shares"] = [f"shares is {shares}; enter 1 to {MAX_SHARES}."]
    for field, limit in (
        ("description", MAX_DESCRIPTION_LENGTH),
        ("budget_label", MAX_NAME_LENGTH),
    ):
        if len(values[field]) > limit:
            errors[field] = [f"{field} has {len(values[field])} characters; use at most {limit}."]
    return errors


def _memberships(session: Session, tenant_id: str, user_id: str) -> Sequence[ProjectMember]:
    statement = select(ProjectMember).where(
        ProjectMember.tenant_id == tenant_id, ProjectMember.user_id == user_id
    )
    return session.scalars(statement.order_by(ProjectMember.id)).unique().all()

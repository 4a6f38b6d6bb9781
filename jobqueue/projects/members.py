"""Members of projects, and the project of a new job."""

from collections.abc import Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError
from jobqueue.projects.models import Project, ProjectMember
from jobqueue.projects.service import MAX_SHARES, get_project, lock_projects, read_tree
from tenants.checks import raise_if_invalid
from tenants.models import Membership, User
from tenants.permissions import Permission
from tenants.scope import Scope

_MAX_LISTED = 10


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
    tenant_id, tree = lock_projects(session, scope)
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
    _, tree = lock_projects(session, scope)
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
    tree = read_tree(session, scope)
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
    project_of_others = read_tree(session, scope).find(wanted)
    if project_of_others is None:
        error = f"There is no project {wanted[:100]!r}. {advice}"
    elif project_of_others.archived_at is not None:
        error = f"The project {project_of_others.name!r} is archived. {advice}"
    else:
        error = f"You are not a member of {project_of_others.name!r}. {advice}"
    raise InvalidInputError(error, errors={"project": [error]})


def _memberships(session: Session, tenant_id: str, user_id: str) -> Sequence[ProjectMember]:
    statement = select(ProjectMember).where(
        ProjectMember.tenant_id == tenant_id, ProjectMember.user_id == user_id
    )
    return session.scalars(statement.order_by(ProjectMember.id)).unique().all()

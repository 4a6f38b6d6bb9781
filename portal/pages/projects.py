"""`/projects`: the tree of projects, and a page for each with its members, quotas and jobs."""

from collections.abc import Sequence

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from jobqueue.projects.models import Project
from jobqueue.projects.quotas import LIMITS, QuotaRequest, quotas_of
from jobqueue.projects.service import (
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
from portal.context import current_scope, database, now
from portal.forms.projects import MemberForm, ProjectForm, QuotaForm, request_of, shown_amount
from portal.pages.common import Pages, changing

pages = Pages("projects", __name__, url_prefix="/projects")


@pages.form("")
def index() -> ResponseReturnValue:
    """List the projects as a tree; add one."""
    scope, form = current_scope(), ProjectForm()
    tenant_id = scope.require_tenant()
    with database() as session:
        form.offer(list_projects(session, scope))
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                project = create_project(session, scope, form.request(), now=now())
            flash(f"Project {project.name} created", "success")
            return redirect(url_for(".show", project_id=project.id))
    with database() as session:
        uses = use_of_projects(session, tenant_id, is_archived=True)
    text = render_template("projects/index.html", uses=uses, form=form, shown_amount=shown_amount)
    return text, form.status


@pages.form("/<project_id>")
def show(project_id: str) -> ResponseReturnValue:
    """Show a project; change it."""
    scope = current_scope()
    with database() as session:
        project = get_project(session, scope, project_id)
        names = ("name", "shares", "budget_label", "description")
        values = {name: getattr(project, name) for name in names}
        form = ProjectForm(data=values | {"parent": project.parent_id or ""})
        form.offer([row for row in list_projects(session, scope) if row.id != project.id])
    if form.validate_on_submit():
        with form.showing_errors():
            wanted = form.request()
            changes = {name: getattr(wanted, name) for name in (*names, "parent")}
            with database() as session:
                change_project(session, scope, project.id, changes)
            flash("Changes saved", "success")
            return redirect(url_for(".show", project_id=project.id))
    return _page(project, form)


@pages.post("/<project_id>/members")
def save_member(project_id: str) -> ResponseReturnValue:
    """Add a member, or change one."""
    scope, form = current_scope(), MemberForm()
    with database() as session:
        project = get_project(session, scope, project_id)
    if form.validate_on_submit():
        with form.showing_errors(renamed={"shares": "user_shares"}):
            with database() as session:
                set_member(
                    session,
                    scope,
                    project.id,
                    form.user.data,
                    shares=form.user_shares.data,
                    is_default=form.is_default.data or None,
                )
            flash(f"{form.user.data} is a member of {project.name}", "success")
            return redirect(url_for(".show", project_id=project.id))
    return _page(project, None, member_form=form)


pages.acts(
    "/<project_id>/members/<user_id>/remove",
    remove_member,
    "Member removed",
    back=".show",
    name="delete_member",
)


@pages.post("/<project_id>/quotas")
def save_quota(project_id: str) -> ResponseReturnValue:
    """Set the quota of a resource, or change it."""
    scope, form = current_scope(), QuotaForm()
    with database() as session:
        project = get_project(session, scope, project_id)
        present = quotas_of(session, project.id)
    if form.validate_on_submit():
        wanted = form.changed(present)
        if wanted is not None:
            last = len(wanted) - 1
            renamed = {f"quotas.{last}.{name}": name for name in (*LIMITS, "gpu_model")}
            with form.showing_errors(renamed=renamed):
                with database() as session:
                    set_quotas(session, scope, project.id, wanted)
                flash("Quota saved", "success")
                return redirect(url_for(".show", project_id=project.id))
    return _page(project, None, quota_form=form)


@pages.post("/<project_id>/quotas/remove")
@changing(back=".show")
def delete_quota(session: Session, project_id: str) -> str:
    """Remove a quota."""
    project = get_project(session, current_scope(), project_id)
    key = request.form.get("resource", ""), request.form.get("gpu_model", "")
    others: Sequence[QuotaRequest] = [
        request_of(quota)
        for quota in quotas_of(session, project.id)
        if (quota.resource.value, quota.gpu_model) != key
    ]
    set_quotas(session, current_scope(), project.id, others)
    return "Quota removed"


pages.acts("/<project_id>/archive", archive_project, "Project {.name} archived")
pages.acts("/<project_id>/restore", restore_project, "Project {.name} restored", back=".show")


def _page(
    project: Project,
    form: ProjectForm | None,
    *,
    member_form: MemberForm | None = None,
    quota_form: QuotaForm | None = None,
) -> ResponseReturnValue:
    scope = current_scope()
    with database() as session:
        uses = use_of_projects(session, project.tenant_id, is_archived=True)
        members = list_members(session, scope, project.id)
        quotas = quotas_of(session, project.id)
        if form is None:
            names = ("name", "shares", "budget_label", "description")
            form = ProjectForm(
                formdata=None,
                data={name: getattr(project, name) for name in names}
                | {"parent": project.parent_id or ""},
            )
            form.offer([row for row in list_projects(session, scope) if row.id != project.id])
    forms = (form, member_form or MemberForm(formdata=None), quota_form or QuotaForm(formdata=None))
    own = next(use for use in uses if use.project.id == project.id)
    return render_template(
        "projects/show.html",
        project=project,
        own=own,
        below=[use for use in uses if use.project.parent_id == project.id],
        members=members,
        quotas=quotas,
        form=forms[0],
        member_form=forms[1],
        quota_form=forms[2],
        shown_amount=shown_amount,
    ), max(each.status for each in forms)

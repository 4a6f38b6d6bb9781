"""`/users`: the people of one's own tenant, and for operators everybody; who is invited."""

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from portal.context import current_scope, database, now
from portal.door.auth import safe_next
from portal.forms.accounts import InvitationForm, OperatorInvitationForm, RoleForm
from portal.pages.invitations import invite_by_form
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.models import Role
from tenants.people.invitations import list_invitations
from tenants.people.member_changes import remove_operator, remove_user, set_role, set_user_active
from tenants.people.members import Member, get_user, list_users

pages = Blueprint("users", __name__)


@pages.get("/users")
@pages.post("/users")
def index() -> ResponseReturnValue:
    """List the users; invite one."""
    scope = current_scope()
    form = OperatorInvitationForm() if scope.tenant_id is None else InvitationForm()
    if not form.validate_on_submit():
        return _render(form), 422 if form.errors else 200
    try:
        return invite_by_form(form, tenant_id=scope.tenant_id, back=url_for(".index"))
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render(form), error.status


@pages.get("/users/<user_id>")
def show(user_id: str) -> ResponseReturnValue:
    """Show a person in one tenant, and what may be changed about them."""
    with database() as session:
        person = get_user(session, current_scope(), user_id, tenant_id=_tenant_id())
    form = RoleForm(formdata=None, data={"role": person.role.value})
    return render_template("user_show.html", person=person, form=form)


@pages.post("/users/<user_id>/active")
def switch(user_id: str) -> ResponseReturnValue:
    """Lock a user out, or let them in again."""
    is_active = request.form.get("is_active") == "1"
    try:
        with database() as session:
            user = set_user_active(
                session, current_scope(), user_id, is_active=is_active, tenant_id=_tenant_id()
            )
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash(f"{user.name} {'may sign in again' if is_active else 'is locked out'}.", "success")
    return redirect(_back())


@pages.post("/users/<user_id>/role")
def change_role(user_id: str) -> ResponseReturnValue:
    """Give a user another role."""
    form = RoleForm()
    if not form.validate_on_submit():
        with database() as session:
            person = get_user(session, current_scope(), user_id, tenant_id=_tenant_id())
        return render_template("user_show.html", person=person, form=form), 422
    try:
        with database() as session:
            user = set_role(
                session, current_scope(), user_id, Role(form.role.data), tenant_id=_tenant_id()
            )
    except (ConflictError, InvalidInputError) as error:
        flash(error.message, "warning")
    else:
        flash(f"{user.name} is {user.role.value} now.", "success")
    return redirect(_back())


@pages.post("/users/<user_id>/remove")
def remove(user_id: str) -> ResponseReturnValue:
    """Take a user out of the tenant, or out of the operators."""
    try:
        with database() as session:
            user = _remove(session, user_id)
    except ConflictError as error:
        flash(error.message, "warning")
        return redirect(_back())
    flash(f"{user.name} is removed.", "success")
    return redirect(url_for(".index"))


def _remove(session: Session, user_id: str) -> Member:
    scope = current_scope()
    if request.form.get("from") == "operators":
        return remove_operator(session, scope, user_id, now=now())
    return remove_user(session, scope, user_id, tenant_id=_tenant_id(), now=now())


def _render(form: InvitationForm) -> str:
    with database() as session:
        scope = current_scope()
        page = list_users(session, scope, page=page_number(), page_size=PAGE_SIZE)
        invitations = list_invitations(session, scope, page_size=PAGE_SIZE)
    return render_template("users.html", form=form, page=page, invitations=invitations)


def _tenant_id() -> str | None:
    """Return the tenant that an operator looks at a person of; an admin's is their own anyway."""
    return request.values.get("tenant_id") or None


def _back() -> str:
    return safe_next(request.form.get("next") or url_for(".index"))

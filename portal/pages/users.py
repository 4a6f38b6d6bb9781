"""`/users`: users, their roles and access, and support sessions."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from portal.auth.guard import safe_next
from portal.context import current_principal, current_scope, database, now
from portal.forms.accounts import InvitationForm, OperatorInvitationForm, RoleForm, SupportForm
from portal.pages.common import Pages, changing
from portal.pages.invitations import invite_by_form
from portal.query_string import PAGE_SIZE, asked_page
from tenants.models import Role
from tenants.tenants import get_tenant
from tenants.users.invitations import list_invitations
from tenants.users.member_changes import remove_operator, remove_user, set_role, set_user_active
from tenants.users.members import get_user, list_users
from tenants.users.second_factor import reset_second_factor
from tenants.users.support import (
    DURATION,
    end_support_session,
    find_user_to_support,
    start_support_session,
)

pages = Pages("users", __name__)


def _back() -> str:
    return safe_next(request.form.get("next") or url_for(".index"))


@pages.form("/users")
def index() -> ResponseReturnValue:
    """List users; invite one."""
    scope = current_scope()
    form = OperatorInvitationForm() if scope.tenant_id is None else InvitationForm()
    if form.validate_on_submit():
        with form.showing_errors():
            return invite_by_form(form, tenant_id=scope.tenant_id, back=url_for(".index"))
    with database() as session:
        page = list_users(session, scope, **asked_page())
        invitations = list_invitations(session, scope, page_size=PAGE_SIZE)
    html = render_template("users/index.html", form=form, page=page, invitations=invitations)
    return html, form.status


@pages.get("/users/<user_id>")
def show(user_id: str) -> ResponseReturnValue:
    """Show a user in one tenant."""
    with database() as session:
        person = get_user(session, current_scope(), user_id, tenant_id=_tenant_id())
    form = RoleForm(formdata=None, data={"role": person.role.value})
    return render_template("users/show.html", person=person, form=form)


@pages.post("/users/<user_id>/active")
@changing(back=_back)
def switch(session: Session, user_id: str) -> str:
    """Deactivate or reactivate a user."""
    is_active = request.form.get("is_active") == "1"
    user = set_user_active(
        session, current_scope(), user_id, is_active=is_active, tenant_id=_tenant_id()
    )
    return f"{user.name} {'reactivated' if is_active else 'deactivated'}"


@pages.post("/users/<user_id>/role")
def change_role(user_id: str) -> ResponseReturnValue:
    """Change a user's role."""
    form = RoleForm()
    if not form.validate_on_submit():
        with database() as session:
            person = get_user(session, current_scope(), user_id, tenant_id=_tenant_id())
        return render_template("users/show.html", person=person, form=form), form.status
    try:
        with database() as session:
            user = set_role(
                session, current_scope(), user_id, Role(form.role.data), tenant_id=_tenant_id()
            )
    except (ConflictError, InvalidInputError) as error:
        flash(error.message, "warning")
    else:
        flash(f"Role of {user.name} changed to {user.role.value}", "success")
    return redirect(_back())


@pages.post("/users/<user_id>/second-factor/reset")
@changing(back=_back)
def reset_factor(session: Session, user_id: str) -> str:
    """Turn off the second factor of a user who lost their device."""
    member = reset_second_factor(session, current_scope(), user_id, now())
    return f"Second factor of {member.name} turned off"


@pages.post("/users/<user_id>/remove")
def remove(user_id: str) -> ResponseReturnValue:
    """Remove a user from a tenant or from the operators."""
    scope = current_scope()
    try:
        with database() as session:
            if request.form.get("from") == "operators":
                user = remove_operator(session, scope, user_id, now=now())
            else:
                user = remove_user(session, scope, user_id, tenant_id=_tenant_id(), now=now())
    except ConflictError as error:
        flash(error.message, "warning")
        return redirect(_back())
    flash(f"{user.name} removed", "success")
    return redirect(url_for(".index"))


@pages.form("/tenants/<tenant_id>/users/<user_id>/support")
def start_support(tenant_id: str, user_id: str) -> ResponseReturnValue:
    """Ask for a reason, then start a support session as a tenant's user."""
    operator, form = current_principal(), SupportForm()
    with database() as session:
        user = find_user_to_support(session, operator, tenant_id=tenant_id, user_id=user_id)
        tenant = get_tenant(session, operator.scope, tenant_id)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                start_support_session(
                    session,
                    operator,
                    tenant_id=tenant_id,
                    user_id=user_id,
                    reason=form.reason.data,
                    now=now(),
                )
            return redirect("/")
    minutes = int(DURATION.total_seconds() // 60)
    html = render_template(
        "users/support.html", form=form, person=user, tenant=tenant, minutes=minutes
    )
    return html, form.status


@pages.post("/support/end")
def end_support() -> ResponseReturnValue:
    """End this browser's support session."""
    operator = current_principal()
    with database() as session:
        end_support_session(session, operator, now=now())
    if operator.support_session is None:
        return redirect("/")
    flash("Support session ended", "success")
    return redirect(url_for("tenants.show", tenant_id=operator.support_session.tenant_id))


def _tenant_id() -> str | None:
    """Return the tenant in an operator's request; admins have only their own."""
    return request.values.get("tenant_id") or None

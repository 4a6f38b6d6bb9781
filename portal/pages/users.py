"""`/users`: the people of one's own tenant."""

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError, InvalidInputError
from portal.auth import safe_next
from portal.context import current_scope, database, now
from portal.forms.accounts import UserForm
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.members import add_user, list_users, set_user_active
from tenants.models import Role

pages = Blueprint("users", __name__)


@pages.get("/users")
@pages.post("/users")
def index() -> ResponseReturnValue:
    """List the users; add one."""
    form = UserForm()
    if not form.validate_on_submit():
        return _render(form), 422 if form.errors else 200
    scope = current_scope()
    try:
        with database() as session:
            user = add_user(
                session,
                scope,
                tenant_id=scope.require_tenant(),
                email=form.email.data,
                name=form.name.data,
                role=Role(form.role.data),
                password=form.password.data,
                now=now(),
            )
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render(form), error.status
    flash(f"{user.name} may sign in now.", "success")
    return redirect(url_for(".index"))


@pages.post("/users/<user_id>/active")
def switch(user_id: str) -> ResponseReturnValue:
    """Lock a user out, or let them in again."""
    is_active = request.form.get("is_active") == "1"
    try:
        with database() as session:
            user = set_user_active(session, current_scope(), user_id, is_active=is_active)
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash(f"{user.name} {'may sign in again' if is_active else 'is locked out'}.", "success")
    return redirect(safe_next(request.form.get("next") or url_for(".index")))


def _render(form: UserForm) -> str:
    with database() as session:
        page = list_users(session, current_scope(), page=page_number(), page_size=PAGE_SIZE)
    return render_template("users.html", form=form, page=page)

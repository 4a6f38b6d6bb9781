"""`/login` and `/logout`, and which tenant this browser looks at."""

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ForbiddenError, OverloadedError, UnauthenticatedError
from portal.context import current_visitor, database, now, visitor
from portal.door.auth import safe_next
from portal.door.entering import sign_in, sign_out
from portal.forms.accounts import LoginForm
from tenants.people.sessions import switch_tenant
from tenants.visitors import Via

pages = Blueprint("session", __name__)


@pages.get("/login")
@pages.post("/login")
def login() -> ResponseReturnValue:
    """Show the login form, or sign in and go where the user wanted to go."""
    target = safe_next(request.args.get("next"))
    if visitor() is not None and request.method == "GET":
        return redirect(target)
    form = LoginForm()
    if form.validate_on_submit():
        try:
            return redirect(
                sign_in(email=form.email.data, password=form.password.data, target=target)
            )
        except (UnauthenticatedError, OverloadedError) as error:
            form.form_errors.append(error.message)
            return render_template("login.html", form=form), error.status
    return render_template("login.html", form=form), 422 if form.errors else 200


@pages.post("/logout")
def logout() -> ResponseReturnValue:
    """Sign out of this browser."""
    sign_out()
    return redirect(url_for("session.login"))


@pages.post("/switch-tenant")
def switch() -> ResponseReturnValue:
    """Look at another tenant of one's own from now on; nothing chosen is the operator's view."""
    here = current_visitor()
    if here.via is not Via.SESSION or here.credential_id is None:
        raise ForbiddenError("Only a browser looks at one tenant at a time; a token has its own.")
    with database() as db:
        tenant_id = request.form.get("tenant_id") or None
        tenant = switch_tenant(db, here.credential_id, tenant_id, now=now())
    flash(f"You look at {tenant.name if tenant else 'all tenants'} now.", "success")
    return redirect("/")

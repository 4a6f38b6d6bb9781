"""`/login` and `/logout`."""

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import UnauthenticatedError
from portal.auth import safe_next, sign_in, sign_out
from portal.context import visitor
from portal.forms.accounts import LoginForm

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
            sign_in(email=form.email.data, password=form.password.data)
        except UnauthenticatedError as error:
            form.form_errors.append(error.message)
        else:
            return redirect(target)
    status = 401 if form.form_errors else 422 if form.errors else 200
    return render_template("login.html", form=form), status


@pages.post("/logout")
def logout() -> ResponseReturnValue:
    """Sign out of this browser."""
    sign_out()
    return redirect(url_for("session.login"))

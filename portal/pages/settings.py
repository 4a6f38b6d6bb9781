"""`/settings`: one's own profile, password and API tokens."""

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError
from portal.auth import session_secret
from portal.context import current_scope, current_user, database, now, portal
from portal.forms.accounts import PasswordForm, TokenForm
from tenants.accounts import change_password
from tenants.signin import create_api_token, list_api_tokens, revoke_api_token

pages = Blueprint("settings", __name__)


@pages.get("/settings")
def index() -> ResponseReturnValue:
    """Show profile, password form and API tokens."""
    return _render()


@pages.post("/settings/password")
def change() -> ResponseReturnValue:
    """Change the password and sign out every other browser."""
    form = PasswordForm()
    if not form.validate_on_submit():
        return _render(password_form=form), 422
    try:
        with database() as session:
            change_password(
                session,
                current_user(),
                current=form.current.data,
                new=form.new.data,
                keep_session=session_secret(),
            )
    except InvalidInputError as error:
        form.show_errors(error)
        return _render(password_form=form), error.status
    flash("Your password is changed. Other browsers were signed out.", "success")
    return redirect(url_for(".index"))


@pages.post("/settings/tokens")
def add_token() -> ResponseReturnValue:
    """Make an API token and show its secret once."""
    form = TokenForm()
    if not form.validate_on_submit():
        return _render(token_form=form), 422
    try:
        with database() as session:
            _, secret = create_api_token(session, current_scope(), name=form.name.data, now=now())
    except InvalidInputError as error:
        form.show_errors(error)
        return _render(token_form=form), error.status
    return _render(secret=secret)


@pages.post("/settings/tokens/<token_id>/revoke")
def revoke_token(token_id: str) -> ResponseReturnValue:
    """Revoke an API token."""
    with database() as session:
        token = revoke_api_token(session, current_scope(), token_id, now=now())
    flash(f"Token {token.name} is revoked.", "success")
    return redirect(url_for(".index"))


def _render(
    *,
    password_form: PasswordForm | None = None,
    token_form: TokenForm | None = None,
    secret: str = "",
) -> str:
    with database() as session:
        tokens = list_api_tokens(session, current_scope())
    return render_template(
        "settings.html",
        password_form=password_form or PasswordForm(formdata=None),
        token_form=token_form or TokenForm(formdata=None),
        tokens=tokens,
        new_secret=secret,
        url=portal().settings.resolved_public_url,
    )

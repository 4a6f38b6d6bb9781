"""`/settings`: one's own profile, password, browsers and API tokens."""

from flask import Blueprint, flash, redirect, render_template, url_for
from flask import session as flask_session
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError
from portal.context import current_scope, current_user, current_visitor, database, now, portal
from portal.door.devices import device_name
from portal.door.entering import session_secret
from portal.door.tries import counted_try
from portal.forms.accounts import PASSWORD_HELP, PasswordForm, TokenForm
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.accounts import change_password
from tenants.people.sessions import end_all_sessions, end_one_session, list_sessions
from tenants.people.signin import record_of_person
from tenants.people.throttling import TooManyTriesError
from tenants.people.tokens import create_api_token, is_in_force, list_api_tokens, revoke_api_token

pages = Blueprint("settings", __name__)


@pages.get("/settings")
def index() -> ResponseReturnValue:
    """Show profile, password form and API tokens."""
    return _render()


@pages.post("/settings/password")
def change() -> ResponseReturnValue:
    """Change the password and sign out every other browser."""
    current_scope().require_unlimited()
    form = PasswordForm()
    if not form.validate_on_submit():
        return _render(password_form=form), 422
    user = current_user()
    try:
        with counted_try(f"current password of {user.id}") as session:
            change_password(
                session,
                user,
                current=form.current.data,
                new=form.new.data,
                keep_session=session_secret(),
            )
    except (InvalidInputError, TooManyTriesError) as error:
        form.show_errors(error)
        return _render(password_form=form), error.status
    flash("Your password is changed. Other browsers were signed out.", "success")
    return redirect(url_for(".index"))


@pages.post("/settings/tokens")
def add_token() -> ResponseReturnValue:
    """Make an API token and show its secret once."""
    form = TokenForm(current_scope().role)
    if not form.validate_on_submit():
        return _render(token_form=form), 422
    try:
        with database() as session:
            _, secret = create_api_token(
                session, current_scope(), name=form.name.data, limits=form.limits, now=now()
            )
    except InvalidInputError as error:
        form.show_errors(error, renamed={"lifetime_days": "lifetime"})
        return _render(token_form=form), error.status
    return _render(secret=secret)


@pages.post("/settings/tokens/<token_id>/revoke")
def revoke_token(token_id: str) -> ResponseReturnValue:
    """Revoke an API token."""
    with database() as session:
        token = revoke_api_token(session, current_scope(), token_id, now=now())
    flash(f"Token {token.name} is revoked.", "success")
    return redirect(url_for(".index"))


@pages.post("/settings/sessions/<session_id>/end")
def end_browser(session_id: str) -> ResponseReturnValue:
    """Sign one browser out."""
    with database() as session:
        end_one_session(session, current_scope(), session_id)
        record_of_person(session, current_user(), action="session.ended", now=now())
    flash("That browser is signed out.", "success")
    return redirect(url_for(".index"))


@pages.post("/settings/sessions/end-all")
def end_browsers() -> ResponseReturnValue:
    """Sign every browser out, this one too."""
    current_scope().require_unlimited()
    user = current_user()
    with database() as session:
        end_all_sessions(session, user.id)
        record_of_person(session, user, action="session.all_ended", now=now())
    flask_session.clear()
    flash("You are signed out everywhere.", "success")
    return redirect(url_for("session.login"))


def _render(
    *,
    password_form: PasswordForm | None = None,
    token_form: TokenForm | None = None,
    secret: str = "",
) -> str:
    with database() as session:
        tokens = list_api_tokens(
            session, current_scope(), page=page_number("tokens_page"), page_size=PAGE_SIZE
        )
        browsers = list_sessions(
            session, current_user().id, now=now(), page=page_number(), page_size=PAGE_SIZE
        )
    return render_template(
        "settings.html",
        password_form=password_form or PasswordForm(formdata=None),
        token_form=token_form or TokenForm(current_scope().role, formdata=None),
        tokens=tokens,
        is_in_force=lambda token: is_in_force(token, now=now()),
        browsers=browsers,
        this_browser=current_visitor().credential_id,
        device_name=device_name,
        new_secret=secret,
        password_help=PASSWORD_HELP,
        url=portal().settings.resolved_public_url,
    )

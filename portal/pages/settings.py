"""`/settings`: the user's profile, password, sessions and API tokens."""

from flask import flash, redirect, render_template, url_for
from flask import session as flask_session
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from portal.auth.devices import device_name
from portal.auth.sign_in import change_own_password
from portal.context import current_principal, current_scope, current_user, database, now, portal
from portal.forms.accounts import PASSWORD_HELP, PasswordForm, TimeZoneForm, TokenForm
from portal.pages.common import Pages, changing
from portal.query_string import asked_page
from portal.time_zone import browser_zone_name
from tenants.models import User
from tenants.users.sessions import end_all_sessions, end_one_session, list_sessions
from tenants.users.signin import record_for_user
from tenants.users.time_zones import choose_time_zone
from tenants.users.tokens import (
    create_api_token,
    is_token_active,
    list_api_tokens,
    revoke_api_token,
)

pages = Pages("settings", __name__)


@pages.get("/settings")
def index() -> ResponseReturnValue:
    """Show the settings."""
    return _render()


@pages.post("/settings/time-zone")
def change_time_zone() -> ResponseReturnValue:
    """Choose the time zone in which the user reads times."""
    current_scope().require_unlimited()
    form = TimeZoneForm(current_user().time_zone, browser_zone_name())
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                choose_time_zone(session.get_one(User, current_user().id), form.time_zone.data)
            flash("Time zone changed", "success")
            return redirect(url_for(".index"))
    return _render(zone_form=form), form.status


@pages.post("/settings/password")
def change() -> ResponseReturnValue:
    """Change the password and end all other sessions."""
    current_scope().require_unlimited()
    form = PasswordForm()
    if form.validate_on_submit():
        with form.showing_errors():
            change_own_password(current=form.current.data, new=form.new.data)
            flash("Password changed. Your other sessions were signed out.", "success")
            return redirect(url_for(".index"))
    return _render(password_form=form), form.status


@pages.post("/settings/tokens")
def add_token() -> ResponseReturnValue:
    """Create an API token and show its secret once."""
    form = TokenForm(current_scope().role)
    if form.validate_on_submit():
        with form.showing_errors(renamed={"lifetime_days": "lifetime"}):
            with database() as session:
                _, secret = create_api_token(
                    session, current_scope(), name=form.name.data, limits=form.limits, now=now()
                )
            return _render(secret=secret)
    return _render(token_form=form), form.status


pages.acts(
    "/settings/tokens/<token_id>/revoke",
    revoke_api_token,
    "Token {.name} revoked",
    name="revoke_token",
)


@pages.post("/settings/sessions/<session_id>/end")
@changing(back=".index")
def end_browser(session: Session, session_id: str) -> str:
    """End one session."""
    end_one_session(session, current_scope(), session_id)
    record_for_user(session, current_user(), action="session.ended", now=now())
    return "Session signed out"


@pages.post("/settings/sessions/end-all")
def end_browsers() -> ResponseReturnValue:
    """End all sessions, including this one."""
    current_scope().require_unlimited()
    user = current_user()
    with database() as session:
        end_all_sessions(session, user.id)
        record_for_user(session, user, action="session.all_ended", now=now())
    flask_session.clear()
    flash("Signed out of all sessions", "success")
    return redirect(url_for("session.login"))


def _render(
    *,
    password_form: PasswordForm | None = None,
    token_form: TokenForm | None = None,
    zone_form: TimeZoneForm | None = None,
    secret: str = "",
) -> str:
    with database() as session:
        tokens = list_api_tokens(session, current_scope(), **asked_page("tokens_page"))
        browsers = list_sessions(session, current_user().id, now=now(), **asked_page())
    return render_template(
        "account/settings.html",
        password_form=password_form or PasswordForm(formdata=None),
        zone_form=zone_form
        or TimeZoneForm(current_user().time_zone, browser_zone_name(), formdata=None),
        token_form=token_form or TokenForm(current_scope().role, formdata=None),
        tokens=tokens,
        is_token_active=lambda token: is_token_active(token, now=now()),
        browsers=browsers,
        this_browser=current_principal().credential_id,
        device_name=device_name,
        new_secret=secret,
        password_help=PASSWORD_HELP,
        url=portal().settings.resolved_public_url,
    )

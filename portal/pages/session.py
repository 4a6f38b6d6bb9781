"""Signing in and out, password reset, and switching between tenants."""

import logging
import threading

from flask import flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from core.db import transaction
from core.errors import (
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
)
from core.settings import secret_key
from portal.auth.guard import safe_next
from portal.auth.sign_in import (
    count_reset_request,
    open_session,
    pending_sign_in,
    sign_in,
    sign_out,
    verify_code,
)
from portal.context import (
    Portal,
    actor_of,
    actor_signing_in,
    current_principal,
    database,
    now,
    portal,
    principal,
)
from portal.forms.accounts import PASSWORD_HELP, CodeForm, ForgottenForm, LoginForm, NewPasswordForm
from portal.mail import can_send, send_email
from portal.pages.common import Pages
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import set_actor
from tenants.principals import Via
from tenants.users.emails import Email
from tenants.users.resets import Purpose, create_reset, find_reset, make_link, read_link, use_reset
from tenants.users.sessions import switch_tenant
from tenants.users.throttling import TooManyAttemptsError

log = logging.getLogger(__name__)

pages = Pages("session", __name__)


@pages.form("/login")
def login() -> ResponseReturnValue:
    """Sign in with email address and password, and continue to `?next=`."""
    target = safe_next(request.args.get("next"))
    if principal() is not None and request.method == "GET":
        return redirect(target)
    form = LoginForm()
    if form.validate_on_submit():
        email, password = form.email.data, form.password.data
        try:
            return redirect(sign_in(email=email, password=password, target=target))
        except (UnauthenticatedError, OverloadedError) as error:
            form.show_error(error)
    return render_template("auth/login.html", form=form), form.status


@pages.form("/login/second-factor")
def code() -> ResponseReturnValue:
    """Complete a sign-in with a code from an authenticator app."""
    attempt = pending_sign_in()
    if attempt is None and principal() is not None:
        return redirect("/")
    if attempt is None:
        flash("Your sign-in timed out. Sign in again.", "warning")
        return redirect(url_for(".login"))
    form = CodeForm()
    if form.validate_on_submit():
        try:
            open_session(verify_code(attempt.user_id, form.code.data))
            return redirect(safe_next(attempt.target))
        except (UnauthenticatedError, TooManyAttemptsError) as error:
            form.code.errors, form.status = [error.message], error.status
    form.code.data = ""
    return render_template("auth/code.html", form=form), form.status


@pages.post("/logout")
def logout() -> ResponseReturnValue:
    """Sign out."""
    sign_out()
    return redirect(url_for(".login"))


@pages.post("/switch-tenant")
def switch() -> ResponseReturnValue:
    """Switch to another tenant of the user, or to the operator view."""
    user = current_principal()
    if user.via is not Via.SESSION or user.credential_id is None:
        raise ForbiddenError("Only browser sessions can switch tenants.")
    with database() as db:
        tenant_id = request.form.get("tenant_id") or None
        tenant = switch_tenant(db, user.credential_id, tenant_id, now=now())
    flash(f"Switched to {tenant.name if tenant else 'all tenants'}", "success")
    return redirect("/")


@pages.form("/password/forgot")
def forgot() -> ResponseReturnValue:
    """Email a reset link; the response does not reveal whether the account exists."""
    form = ForgottenForm()
    is_able = can_send(portal().settings)
    if is_able and form.validate_on_submit():
        email = form.email.data
        try:
            # Every request counts, successful or not: each one sends an email.
            count_reset_request(email)
        except TooManyAttemptsError as error:
            form.form_errors.append(f"Too many requests. {error.advice}")
            form.status = error.status
        else:
            # In a thread, because the response time would reveal whether the account exists.
            arguments = (portal(), actor_of(principal()), email)
            threading.Thread(
                target=_send_reset_link, args=arguments, name="reset-link", daemon=True
            ).start()
            return render_template("auth/forgot.html", sent_to=email)
    return render_template("auth/forgot.html", form=form, can_send=is_able), form.status


@pages.form("/password/reset/<token>")
def reset(token: str) -> ResponseReturnValue:
    """Set a new password and end all sessions of the user."""
    form = NewPasswordForm()
    try:
        secret = read_link(Purpose.PASSWORD, token, key=secret_key(portal().settings))
        with database() as db:
            user = find_reset(db, secret, now=now())
        if form.validate_on_submit():
            with form.showing_errors():
                with database() as db:
                    set_actor(db, actor_signing_in(user, via="password link"), clock=portal().clock)
                    use_reset(db, secret, password=form.new.data, now=now())
                session.clear()
                flash("Password changed. Sign in with your new password.", "success")
                return redirect(url_for(".login"))
    except NotFoundError as error:
        return render_template("auth/gone.html", message=error.message, is_reset=True), error.status
    page = render_template(
        "auth/reset.html", form=form, email=user.email, password_help=PASSWORD_HELP
    )
    return page, form.status


def _send_reset_link(parts: Portal, actor: Actor, email: str) -> None:
    at, settings = parts.clock(), parts.settings
    with transaction(parts.sessions) as db:
        set_actor(db, actor, clock=parts.clock)
        made = create_reset(db, email, now=at)
    if made is None:
        return
    user, secret = made
    url = settings.resolved_public_url
    message = Email(
        to=user.email,
        subject="Reset your Vedette password",
        text=f"Someone requested a password reset for {user.email} at {url}.",
        link=make_link(Purpose.PASSWORD, secret, key=secret_key(settings), public_url=url),
        link_name="Reset your password",
        ending="The link works once and expires in one hour. If you didn't request it, ignore "
        "this email. Your password stays the same.",
    )
    try:
        send_email(settings, message, now=at)
    except UnavailableError as error:
        log.warning("Email %r was not delivered: %s", message.subject, error.message)

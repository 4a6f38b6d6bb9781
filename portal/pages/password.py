"""`/password`: a forgotten password is set anew by a link that comes by email."""

import threading

from flask import Blueprint, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from core.db import transaction
from core.errors import InvalidInputError, NotFoundError
from core.settings import secret_key
from portal.context import Portal, database, now, portal, visitor
from portal.door.actors import actor_of, signing_in
from portal.forms.accounts import ForgottenForm, NewPasswordForm
from portal.mail import Letter, can_send, send_or_log
from tenants.audit import Actor, set_actor
from tenants.people.links import Purpose, make_link, read_link
from tenants.people.resets import create_reset, find_reset, use_reset
from tenants.people.throttling import TooManyTriesError, count_try

pages = Blueprint("password", __name__, url_prefix="/password")


@pages.get("/forgot")
@pages.post("/forgot")
def forgot() -> ResponseReturnValue:
    """Ask for a link; the answer is the same whoever has the address, or nobody."""
    form = ForgottenForm()
    if not can_send(portal().settings):
        return render_template("password/no_mail.html")
    if not form.validate_on_submit():
        return render_template("password/forgot.html", form=form), 422 if form.errors else 200
    email = form.email.data
    try:
        with database() as db:
            # Asking is counted, and nothing takes it back: every link is a message to somebody.
            count_try(db, account=f"password of {email}", address=request.remote_addr, now=now())
    except TooManyTriesError as error:
        form.form_errors.append(f"There were too many requests. {error.advice}")
        return render_template("password/forgot.html", form=form), error.status
    # Beside the request: how long the answer takes would tell whether anybody has the address.
    threading.Thread(
        target=_send_link, args=(portal(), actor_of(visitor()), email), name="letter", daemon=True
    ).start()
    return render_template("password/sent.html", email=email)


@pages.get("/reset/<token>")
@pages.post("/reset/<token>")
def reset(token: str) -> ResponseReturnValue:
    """Set the new password; every browser of the user is signed out."""
    form = NewPasswordForm()
    try:
        secret = read_link(Purpose.PASSWORD, token, key=secret_key(portal().settings))
        with database() as db:
            user = find_reset(db, secret, now=now())
        if not form.validate_on_submit():
            status = 422 if form.errors else 200
            return render_template("password/reset.html", form=form, email=user.email), status
        with database() as db:
            set_actor(db, signing_in(user, via="password link"), clock=portal().clock)
            use_reset(db, secret, password=form.new.data, now=now())
    except NotFoundError as error:
        return render_template("password/gone.html", message=error.message), error.status
    except InvalidInputError as error:
        form.show_errors(error)
        return render_template("password/reset.html", form=form, email=user.email), error.status
    session.clear()
    flash("Your password is changed. Sign in with it.", "success")
    return redirect(url_for("session.login"))


def reset_link(parts: Portal, secret: str) -> str:
    """Return the address that sets a new password."""
    settings = parts.settings
    return make_link(
        Purpose.PASSWORD, secret, key=secret_key(settings), public_url=settings.resolved_public_url
    )


def _send_link(parts: Portal, actor: Actor, email: str) -> None:
    at = parts.clock()
    with transaction(parts.sessions) as db:
        set_actor(db, actor, clock=parts.clock)
        made = create_reset(db, email, now=at)
    if made is None:
        return
    user, secret = made
    letter = Letter(
        to=user.email,
        subject="A new password for Vedette",
        text=f"Somebody asked for a new password of {user.email} at "
        f"{parts.settings.resolved_public_url}.",
        link=reset_link(parts, secret),
        link_name="Set a new password",
        ending="The link works once and for one hour. If it was not you, do nothing: "
        "your password stays as it is.",
    )
    send_or_log(parts.settings, letter, now=at)

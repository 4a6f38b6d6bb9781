"""`/market/sign-up`: a new customer's tenant, by an emailed link."""

import logging
import threading
from dataclasses import replace
from http import HTTPStatus

from flask import abort, flash, redirect, render_template
from flask.typing import ResponseReturnValue

from core.db import transaction
from core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from core.settings import secret_key
from marketplace.sign_ups.service import (
    NewCustomer,
    checked_email,
    confirm_sign_up,
    find_sign_up,
    start_sign_up,
)
from portal.auth.sign_in import continue_sign_in, count_sign_up
from portal.context import Portal, actor_of, database, now, portal, require_marketplace
from portal.forms.accounts import PASSWORD_HELP
from portal.forms.market import ConfirmForm, SignUpForm
from portal.mail import can_send, send_email
from portal.pages.common import Pages
from tenants.auditing.recording import set_actor
from tenants.users.emails import Email
from tenants.users.resets import Purpose, make_link, read_link
from tenants.users.throttling import TooManyAttemptsError

log = logging.getLogger(__name__)

pages = Pages("sign_up", __name__, url_prefix="/market/sign-up")
pages.before_request(require_marketplace)


@pages.before_request
def _require_sign_up() -> None:
    if not portal().settings.marketplace_sign_up:
        abort(HTTPStatus.NOT_FOUND)


@pages.form("")
def index() -> ResponseReturnValue:
    """Email a link; the response does not reveal whether the address has an account."""
    form = SignUpForm()
    is_able = can_send(portal().settings)
    if is_able and form.validate_on_submit():
        try:
            email = checked_email(form.email.data)
            count_sign_up(email)
        except TooManyAttemptsError as error:
            form.form_errors.append(f"Too many requests. {error.advice}")
            form.status = error.status
        except InvalidInputError as error:
            form.show_error(error)
        else:
            # In a thread, because the response time would reveal whether the account exists.
            threading.Thread(
                target=_send_link, args=(portal(), email), name="sign-up-link", daemon=True
            ).start()
            return render_template("market/sign_up.html", sent_to=email)
    return render_template("market/sign_up.html", form=form, can_send=is_able), form.status


@pages.form("/<token>")
def confirm(token: str) -> ResponseReturnValue:
    """Create the tenant and its admin, and sign in."""
    form, settings = ConfirmForm(), portal().settings
    try:
        secret = read_link(Purpose.SIGN_UP, token, key=secret_key(settings))
        with database() as session:
            email = find_sign_up(session, secret, now=now()).email
        if form.validate_on_submit():
            if settings.marketplace_terms_url and not form.accepts_terms.data:
                form.accepts_terms.errors = ["Accept the terms of use to go on."]
                form.status = HTTPStatus.UNPROCESSABLE_ENTITY
            else:
                return _confirm(form, secret, email)
    except NotFoundError as error:
        return _gone(error)
    except ConflictError:
        form.form_errors.append("This address has an account. Sign in instead.")
        form.status = HTTPStatus.CONFLICT
    except InvalidInputError as error:
        form.show_error(error)
    text = render_template(
        "market/confirm.html",
        form=form,
        email=email,
        password_help=PASSWORD_HELP,
        terms_url=settings.marketplace_terms_url,
    )
    return text, form.status


def _confirm(form: ConfirmForm, secret: str, email: str) -> ResponseReturnValue:
    customer = NewCustomer(
        organization=form.organization.data, name=form.name.data, password=form.password.data
    )
    is_admitted = portal().settings.marketplace_admits_customers
    with database() as session:
        actor = replace(actor_of(None), name=email, via="sign-up")
        set_actor(session, actor, clock=portal().clock)
        user = confirm_sign_up(session, secret, customer, is_admitted=is_admitted, now=now())
    text = "Welcome. Choose an offer to rent your first GPU."
    if not is_admitted:
        text = "Welcome. You can rent as soon as the operator has admitted your account."
    flash(text, "success")
    return redirect(continue_sign_in(user, target="/rent"))


def _gone(error: NotFoundError) -> ResponseReturnValue:
    text = render_template("auth/gone.html", message=error.message, is_sign_up=True)
    return text, error.status


def _send_link(parts: Portal, email: str) -> None:
    at, settings = parts.clock(), parts.settings
    url = settings.resolved_public_url
    try:
        with transaction(parts.sessions) as session:
            secret = start_sign_up(session, email, now=at)
        if secret is None:
            message = Email(
                to=email,
                subject="You already have a Vedette account",
                text=f"Someone asked to sign up with {email} at {url}. The address has an account.",
                link=f"{url}/login",
                link_name="Sign in",
                ending="If you forgot your password, the sign-in page has a link to reset it. If "
                "you didn't ask for this, ignore this email.",
            )
        else:
            message = Email(
                to=email,
                subject="Confirm your email address",
                text=f"Confirm {email} to sign up at {url}.",
                link=make_link(Purpose.SIGN_UP, secret, key=secret_key(settings), public_url=url),
                link_name="Confirm and go on",
                ending="The link works once and expires in 24 hours. If you didn't ask for this, "
                "ignore this email; nothing is created.",
            )
        send_email(settings, message, now=at)
    except (OverloadedError, UnavailableError) as error:
        log.warning("the link of a sign-up was not sent: %s", error.message)

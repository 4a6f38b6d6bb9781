"""`/invitations` lists and manages invitations; `/invitation/<token>` accepts one."""

from dataclasses import replace

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
)
from core.settings import secret_key
from portal.auth.guard import safe_next
from portal.auth.sign_in import check_password, continue_sign_in
from portal.context import (
    actor_of,
    actor_signing_in,
    current_scope,
    database,
    now,
    portal,
    principal,
)
from portal.forms.accounts import PASSWORD_HELP, ExistingAccountForm, InvitationForm, NewAccountForm
from portal.mail import charge_invitation, send_invitation
from portal.pages.common import Pages
from portal.query_string import asked_page
from tenants.auditing.recording import set_actor
from tenants.models import Invitation, Role
from tenants.principals import Principal, Via
from tenants.users.emails import InvitationDelivery, invitation_target
from tenants.users.invitations import (
    accept_as,
    accept_as_new,
    find_invitation,
    invite,
    list_invitations,
    renew_invitation,
    revoke_invitation,
)
from tenants.users.resets import Purpose, read_link
from tenants.users.sessions import switch_tenant
from tenants.users.throttling import TooManyAttemptsError

pages = Pages("invitations", __name__)


def _back() -> str:
    return safe_next(request.form.get("next") or url_for("users.index"))


@pages.get("/invitations")
def index() -> ResponseReturnValue:
    """List pending invitations."""
    with database() as db:
        page = list_invitations(db, current_scope(), **asked_page())
    return render_template("users/invitations.html", invitations=page)


@pages.post("/invitations/<invitation_id>/resend")
def resend(invitation_id: str) -> ResponseReturnValue:
    """Send an invitation again with a new link."""
    try:
        with database() as db:
            made = renew_invitation(db, current_scope(), invitation_id, now=now())
            charge_invitation(db)
    except (ConflictError, OverloadedError) as error:
        flash(error.message, "warning")
        return redirect(_back())
    return show_outcome(send_invitation(*made), back=_back())


pages.acts(
    "/invitations/<invitation_id>/revoke",
    revoke_invitation,
    "Invitation for {.email} revoked",
    back=_back,
)


@pages.form("/invitation/<token>")
def accept(token: str) -> ResponseReturnValue:
    """Show an invitation; accept it with a new account."""
    form = NewAccountForm()
    try:
        secret, invitation = _find(token)
        if form.validate_on_submit():
            actor = replace(actor_of(None), name=invitation.email, via="invitation")
            with database() as db:
                set_actor(db, actor, clock=portal().clock)
                user = accept_as_new(
                    db, secret, name=form.name.data, password=form.password.data, now=now()
                )
            return _welcome(invitation, continue_sign_in(user))
    except NotFoundError as error:
        return render_template("auth/gone.html", message=error.message), error.status
    except ConflictError as error:
        form.form_errors.append(
            "An account can't be created for this address. If you already have one, sign in below."
        )
        form.status = error.status
    except InvalidInputError as error:
        form.show_error(error)
    return _render(token, invitation, form, ExistingAccountForm(formdata=None)), form.status


@pages.post("/invitation/<token>/join")
def join(token: str) -> ResponseReturnValue:
    """Accept an invitation with an existing account: the signed-in user's, or by password."""
    form = ExistingAccountForm()
    current = principal()
    try:
        secret, invitation = _find(token)
        if current is not None:
            _check_no_support_session(current)
            with database() as db:
                accept_as(db, secret, current.user.id, now=now())
                if current.via is Via.SESSION and current.credential_id is not None:
                    switch_tenant(db, current.credential_id, invitation.tenant_id, now=now())
            return _welcome(invitation, "/")
        if form.validate_on_submit():
            user = check_password(email=invitation.email, password=form.known_password.data)
            with database() as db:
                set_actor(db, actor_signing_in(user, via="invitation"), clock=portal().clock)
                user = accept_as(db, secret, user.id, now=now())
            return _welcome(invitation, continue_sign_in(user))
    except NotFoundError as error:
        return render_template("auth/gone.html", message=error.message), error.status
    except (UnauthenticatedError, TooManyAttemptsError, ConflictError, ForbiddenError) as error:
        form.show_error(error)
    return _render(token, invitation, NewAccountForm(formdata=None), form), form.status


def invite_by_form(
    form: InvitationForm, *, tenant_id: str | None, back: str
) -> ResponseReturnValue:
    """Invite a user, then redirect to `back`.

    Raises:
        InvalidInputError: a field is invalid.
        ConflictError: the user is already a member or invited.
        OverloadedError: the user has sent as many messages as allowed within an hour.
    """
    with database() as db:
        made = invite(
            db,
            current_scope(),
            tenant_id=tenant_id,
            email=form.email.data,
            role=Role(form.role.data),
            now=now(),
        )
        charge_invitation(db)
    return show_outcome(send_invitation(*made), back=back)


def show_outcome(outcome: InvitationDelivery, *, back: str) -> ResponseReturnValue:
    """Confirm that an invitation was sent, or show its link once."""
    if outcome.link is None:
        flash(f"Invitation sent to {outcome.invitation.email}", "success")
        return redirect(back)
    return render_template("users/link.html", outcome=outcome, back=back)


def _find(token: str) -> tuple[str, Invitation]:
    secret = read_link(Purpose.INVITATION, token, key=secret_key(portal().settings))
    with database() as db:
        return secret, find_invitation(db, secret, now=now())


def _check_no_support_session(current: Principal) -> None:
    if current.support_session is not None:
        raise ForbiddenError("You can't accept invitations in a support session.")


def _welcome(invitation: Invitation, target: str) -> ResponseReturnValue:
    flash(f"Welcome to {invitation_target(invitation)}", "success")
    return redirect(target)


def _render(
    token: str, invitation: Invitation, form: NewAccountForm, existing: ExistingAccountForm
) -> str:
    return render_template(
        "auth/accept.html",
        token=token,
        invitation=invitation,
        organization=invitation_target(invitation),
        form=form,
        existing=existing,
        password_help=PASSWORD_HELP,
    )

"""`/invitations` for those who invite, `/invitation/<token>` for those who are invited."""

from dataclasses import replace

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    VedetteError,
)
from core.settings import secret_key
from portal.context import current_scope, database, now, portal, visitor
from portal.door.actors import actor_of, signing_in
from portal.door.auth import safe_next
from portal.door.entering import check_password, enter
from portal.forms.accounts import InvitationForm, KnownPersonForm, NewPersonForm
from portal.inviting import Outcome, place_of, send_invitation
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.audit import Actor, set_actor
from tenants.models import Invitation, Role
from tenants.people.acceptance import accept_as, accept_as_new, find_invitation
from tenants.people.invitations import invite, list_invitations, renew_invitation, revoke_invitation
from tenants.people.links import Purpose, read_link
from tenants.people.sessions import switch_tenant
from tenants.people.throttling import TooManyTriesError
from tenants.visitors import Via, Visitor

pages = Blueprint("invitations", __name__)


@pages.get("/invitations")
def index() -> ResponseReturnValue:
    """List the open invitations."""
    with database() as db:
        page = list_invitations(db, current_scope(), page=page_number(), page_size=PAGE_SIZE)
    return render_template("invitations/index.html", invitations=page)


@pages.post("/invitations/<invitation_id>/resend")
def resend(invitation_id: str) -> ResponseReturnValue:
    """Make a new link for an invitation and send it."""
    back = _back()
    try:
        with database() as db:
            made = renew_invitation(db, current_scope(), invitation_id, now=now())
    except ConflictError as error:
        flash(error.message, "warning")
        return redirect(back)
    return show_outcome(send_invitation(*made), back=back)


@pages.post("/invitations/<invitation_id>/revoke")
def revoke(invitation_id: str) -> ResponseReturnValue:
    """Take an invitation back."""
    try:
        with database() as db:
            revoked = revoke_invitation(db, current_scope(), invitation_id, now=now())
        flash(f"The invitation of {revoked.email} is revoked.", "success")
    except ConflictError as error:
        flash(error.message, "warning")
    return redirect(_back())


@pages.get("/invitation/<token>")
@pages.post("/invitation/<token>")
def accept(token: str) -> ResponseReturnValue:
    """Show an invitation to who holds its link; accept it as somebody new."""
    form = NewPersonForm()
    try:
        secret, invitation = _opened(token)
        if not form.validate_on_submit():
            return _show(token, invitation, form=form, status=422 if form.errors else 200)
        with database() as db:
            set_actor(db, _invited(invitation), clock=portal().clock)
            user = accept_as_new(
                db, secret, name=form.name.data, password=form.password.data, now=now()
            )
    except NotFoundError as error:
        return _gone(error)
    except ConflictError:
        form.form_errors.append(
            "No account could be made for this address. If you have one, give its password below."
        )
        return _show(token, invitation, form=form, status=409)
    except InvalidInputError as error:
        form.show_errors(error)
        return _show(token, invitation, form=form, status=error.status)
    flash(f"Welcome to {place_of(invitation)}.", "success")
    return redirect(enter(user))


@pages.post("/invitation/<token>/join")
def join(token: str) -> ResponseReturnValue:
    """Accept an invitation as somebody with an account: signed in, or by their password."""
    form = KnownPersonForm()
    here = visitor()
    try:
        secret, invitation = _opened(token)
        if here is not None:
            _refuse_visits(here)
            with database() as db:
                accept_as(db, secret, here.user.id, now=now())
                if here.via is Via.SESSION and here.credential_id is not None:
                    switch_tenant(db, here.credential_id, invitation.tenant_id, now=now())
            flash(f"Welcome to {place_of(invitation)}.", "success")
            return redirect("/")
        if not form.validate_on_submit():
            return _show(token, invitation, known=form, status=422)
        user = check_password(email=invitation.email, password=form.known_password.data)
        with database() as db:
            set_actor(db, signing_in(user, via="invitation"), clock=portal().clock)
            user = accept_as(db, secret, user.id, now=now())
    except NotFoundError as error:
        return _gone(error)
    except (UnauthenticatedError, TooManyTriesError, ConflictError, ForbiddenError) as error:
        form.form_errors.append(error.message)
        return _show(token, invitation, known=form, status=error.status)
    flash(f"Welcome to {place_of(invitation)}.", "success")
    return redirect(enter(user))


def invite_by_form(
    form: InvitationForm, *, tenant_id: str | None, back: str
) -> ResponseReturnValue:
    """Invite whom a form names.

    Raises:
        InvalidInputError: a field is wrong.
        ConflictError: the person is a member or invited already.
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
    return show_outcome(send_invitation(*made), back=back)


def show_outcome(outcome: Outcome, *, back: str) -> ResponseReturnValue:
    """Say that an invitation was sent, or show its link, this once."""
    if outcome.link is None:
        flash(f"The invitation is sent to {outcome.invitation.email}.", "success")
        return redirect(back)
    return render_template("invitations/link.html", outcome=outcome, back=back)


def _opened(token: str) -> tuple[str, Invitation]:
    secret = read_link(Purpose.INVITATION, token, key=secret_key(portal().settings))
    with database() as db:
        return secret, find_invitation(db, secret, now=now())


def _show(
    token: str,
    invitation: Invitation,
    *,
    form: NewPersonForm | None = None,
    known: KnownPersonForm | None = None,
    status: int,
) -> ResponseReturnValue:
    page = render_template(
        "invitations/accept.html",
        token=token,
        invitation=invitation,
        place=place_of(invitation),
        form=form or NewPersonForm(formdata=None),
        known=known or KnownPersonForm(formdata=None),
    )
    return page, status


def _gone(error: VedetteError) -> ResponseReturnValue:
    return render_template("invitations/gone.html", message=error.message), error.status


def _invited(invitation: Invitation) -> Actor:
    return replace(actor_of(None), name=invitation.email, via="invitation")


def _refuse_visits(here: Visitor) -> None:
    if here.visit is not None:
        raise ForbiddenError("You act as somebody else. Only they can accept their invitation.")


def _back() -> str:
    return safe_next(request.form.get("next") or url_for("users.index"))

"""`/settings/second-factor`: the second factor of the user's account."""

import io

from flask import Blueprint, Response, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError, NotFoundError
from portal.auth.sign_in import counted_attempt, own_account
from portal.context import database, now, portal
from portal.forms.accounts import CodeForm, CodeProofForm, ProofForm
from tenants.models import User
from tenants.users.second_factor import (
    begin_setup,
    confirm_setup,
    pending_setup,
    recovery_codes_left,
    renew_recovery_codes,
    turn_off,
    unused_codes,
)

pages = Blueprint("second_factor", __name__, url_prefix="/settings/second-factor")
QR_BORDER_MODULES = 4


@pages.get("")
def index() -> ResponseReturnValue:
    """Show the state of the second factor."""
    return _render()


@pages.post("/begin")
def begin() -> ResponseReturnValue:
    """Create a key for the authenticator app."""
    user = own_account()
    try:
        with database() as session:
            begin_setup(session, user.id, box=portal().secrets)
    except ConflictError as error:
        flash(error.message, "warning")
    return redirect(url_for(".index"))


@pages.get("/qr.svg")
def qr_code() -> ResponseReturnValue:
    """Return the QR code of the key."""
    with database() as session:
        user = session.get_one(User, own_account().id)
        setup = pending_setup(user, box=portal().secrets)
    if setup is None:
        raise NotFoundError("The setup of a second factor has not been started.")
    import segno  # noqa: PLC0415 - 4 MiB that servers save whose users don't set it up

    drawn = io.BytesIO()
    segno.make(setup.uri, micro=False).save(
        drawn, kind="svg", light="#fff", border=QR_BORDER_MODULES, scale=4, title="QR code"
    )
    return Response(drawn.getvalue(), mimetype="image/svg+xml")


@pages.post("/confirm")
def confirm() -> ResponseReturnValue:
    """Turn on the second factor and show the recovery codes."""
    user, form = own_account(), CodeForm()
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                codes = confirm_setup(
                    session, user.id, form.code.data, box=portal().secrets, now=now()
                )
            return _render(codes=codes)
    return _render(code_form=form), form.status


@pages.post("/codes")
def renew() -> ResponseReturnValue:
    """Create new recovery codes and show them."""
    user = own_account()
    form = _proof_form(user, "renew")
    if form.validate_on_submit():
        with form.showing_errors():
            with counted_attempt(f"proof of {user.id}") as session:
                codes = renew_recovery_codes(
                    session, user.id, proof=form.proof.data, box=portal().secrets, now=now()
                )
            return _render(codes=codes)
    return _render(renew_form=form), form.status


@pages.post("/codes.txt")
def download() -> ResponseReturnValue:
    """Return the recovery codes in the request as a file, if they are the user's."""
    user = own_account()
    with database() as session:
        codes = unused_codes(session, user.id, request.form.getlist("codes"))
    if not codes:
        raise NotFoundError("These are not your recovery codes. Create new ones.")
    lines = [f"Recovery codes for {user.email} at {portal().settings.resolved_public_url}"]
    lines += ["Each code works once.", "", *codes, ""]
    headers = {"Content-Disposition": 'attachment; filename="vedette-recovery-codes.txt"'}
    return Response("\n".join(lines), mimetype="text/plain", headers=headers)


@pages.post("/off")
def off() -> ResponseReturnValue:
    """Turn off the second factor."""
    user = own_account()
    form = _proof_form(user, "off")
    if form.validate_on_submit():
        with form.showing_errors():
            with counted_attempt(f"proof of {user.id}") as session:
                turn_off(session, user.id, proof=form.proof.data, box=portal().secrets, now=now())
            flash("Second factor turned off", "success")
            return redirect(url_for(".index"))
    return _render(off_form=form), form.status


def _proof_form(user: User, prefix: str, **options: None) -> ProofForm | CodeProofForm:
    kind = CodeProofForm if user.password_hash is None else ProofForm
    return kind(prefix=prefix, **options)


def _render(
    *,
    code_form: CodeForm | None = None,
    renew_form: ProofForm | CodeProofForm | None = None,
    off_form: ProofForm | CodeProofForm | None = None,
    codes: list[str] | None = None,
) -> str:
    with database() as session:
        user = session.get_one(User, own_account().id)
        setup = pending_setup(user, box=portal().secrets)
        codes_left = recovery_codes_left(session, user.id)
    return render_template(
        "account/second_factor.html",
        owner=user,
        setup=setup,
        codes_left=codes_left,
        codes=codes or [],
        code_form=code_form or CodeForm(formdata=None),
        renew_form=renew_form or _proof_form(user, "renew", formdata=None),
        off_form=off_form or _proof_form(user, "off", formdata=None),
    )

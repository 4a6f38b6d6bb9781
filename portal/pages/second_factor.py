"""The second factor: asked for at `/login/second-factor`, kept at `/settings/second-factor`."""

import io

import segno
from flask import Blueprint, Response, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
)
from portal.context import current_scope, database, now, portal, visitor
from portal.door.auth import safe_next
from portal.door.entering import open_session
from portal.door.second_factor import own_account, take_code, waiting
from portal.door.tries import counted_try
from portal.forms.second_factor import CodeForm, CodeProofForm, ProofForm
from tenants.models import User
from tenants.people.second_factor import (
    Setup,
    begin_setup,
    codes_left,
    confirm_setup,
    own_unused_codes,
    renew_codes,
    reset_second_factor,
    setup_under_way,
    turn_off,
)
from tenants.people.throttling import TooManyTriesError

pages = Blueprint("second_factor", __name__)
QR_BORDER_MODULES = 4


@pages.get("/login/second-factor")
@pages.post("/login/second-factor")
def challenge() -> ResponseReturnValue:
    """Ask who has shown the first factor for a code; with a good one they are in."""
    here = waiting()
    if here is None and visitor() is not None:
        return redirect("/")
    if here is None:
        flash("That took too long. Sign in again.", "warning")
        return redirect(url_for("session.login"))
    form = CodeForm()
    if form.validate_on_submit():
        try:
            open_session(take_code(here.user_id, form.code.data))
            return redirect(safe_next(here.target))
        except (UnauthenticatedError, TooManyTriesError) as error:
            form.code.errors = [error.message]
            return render_template("login_second_factor.html", form=form), error.status
    return render_template("login_second_factor.html", form=form), 422 if form.errors else 200


@pages.get("/settings/second-factor")
def index() -> ResponseReturnValue:
    """Show whether the second factor is on, and what can be done."""
    return _render()


@pages.post("/settings/second-factor/begin")
def begin() -> ResponseReturnValue:
    """Make a secret for the authenticator app."""
    user = own_account()
    try:
        with database() as session:
            begin_setup(session, user.id, box=portal().secrets)
    except ConflictError as error:
        flash(error.message, "warning")
    return redirect(url_for(".index"))


@pages.get("/settings/second-factor/qr.svg")
def qr_code() -> ResponseReturnValue:
    """Draw the address that the authenticator app's camera reads."""
    setup = _setup(own_account())
    if setup is None:
        raise NotFoundError("No setup of a second factor is under way.")
    drawn = io.BytesIO()
    segno.make(setup.uri, micro=False).save(
        drawn, kind="svg", light="#fff", border=QR_BORDER_MODULES, scale=4, title="QR code"
    )
    return Response(drawn.getvalue(), mimetype="image/svg+xml")


@pages.post("/settings/second-factor/confirm")
def confirm() -> ResponseReturnValue:
    """Turn the second factor on, and show the recovery codes."""
    user, form = own_account(), CodeForm()
    if not form.validate_on_submit():
        return _render(code_form=form), 422
    try:
        with database() as session:
            codes = confirm_setup(session, user.id, form.code.data, box=portal().secrets, now=now())
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render(code_form=form), error.status
    return _render(codes=codes)


@pages.post("/settings/second-factor/codes")
def renew() -> ResponseReturnValue:
    """Make new recovery codes, and show them."""
    user = own_account()
    form = _proof_form(user, "renew")
    if not form.validate_on_submit():
        return _render(renew_form=form), 422
    try:
        with counted_try(f"proof of {user.id}") as session:
            codes = renew_codes(
                session, user.id, proof=form.proof.data, box=portal().secrets, now=now()
            )
    except (InvalidInputError, ConflictError, TooManyTriesError) as error:
        form.show_errors(error)
        return _render(renew_form=form), error.status
    return _render(codes=codes)


@pages.post("/settings/second-factor/codes.txt")
def download() -> ResponseReturnValue:
    """Give the codes that the page shows back as a file; only who can see them can send them."""
    user = own_account()
    with database() as session:
        codes = own_unused_codes(session, user.id, request.form.getlist("codes"))
    if not codes:
        raise NotFoundError("These are no recovery codes of yours. Make new ones.")
    lines = [f"Recovery codes of {user.email} for {portal().settings.resolved_public_url}"]
    lines += ["Each one is good once.", "", *codes, ""]
    headers = {"Content-Disposition": 'attachment; filename="vedette-recovery-codes.txt"'}
    return Response("\n".join(lines), mimetype="text/plain", headers=headers)


@pages.post("/settings/second-factor/off")
def off() -> ResponseReturnValue:
    """Turn the second factor off."""
    user = own_account()
    form = _proof_form(user, "off")
    if not form.validate_on_submit():
        return _render(off_form=form), 422
    try:
        with counted_try(f"proof of {user.id}") as session:
            turn_off(session, user.id, proof=form.proof.data, box=portal().secrets, now=now())
    except (InvalidInputError, ConflictError, TooManyTriesError) as error:
        form.show_errors(error)
        return _render(off_form=form), error.status
    flash("Your second factor is off. Your password alone signs you in now.", "success")
    return redirect(url_for(".index"))


@pages.post("/users/<user_id>/second-factor/reset")
def reset(user_id: str) -> ResponseReturnValue:
    """Take the second factor off a member who lost it."""
    try:
        with database() as session:
            member = reset_second_factor(session, current_scope(), user_id, now())
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash(f"{member.name} signs in without a second factor now.", "success")
    return redirect(safe_next(request.form.get("next") or url_for("users.index")))


def _setup(user: User) -> Setup | None:
    with database() as session:
        return setup_under_way(session.get_one(User, user.id), box=portal().secrets)


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
        setup = setup_under_way(user, box=portal().secrets)
        left = codes_left(session, user.id)
    return render_template(
        "second_factor.html",
        owner=user,
        setup=setup,
        left=left,
        codes=codes or [],
        code_form=code_form or CodeForm(formdata=None),
        renew_form=renew_form or _proof_form(user, "renew", formdata=None),
        off_form=off_form or _proof_form(user, "off", formdata=None),
    )

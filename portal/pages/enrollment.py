"""Enrollment tokens, certificates and fencing: how appliances get and prove their identity."""

from datetime import timedelta

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from portal.context import current_scope, database, now, public_url
from portal.forms.appliances import EnrollmentForm
from portal.installer.script import install_command, script_sha256, wheelhouse_problem
from portal.installer.wheelhouse import BUILD_COMMAND
from portal.pages.common import Pages
from portal.presenters.appliances import enroll_command
from portal.presenters.enrollment import enrollment_progress
from portal.query_string import asked_page
from tenants.enrollment import (
    create_enrollment_token,
    create_token_for_appliance,
    list_enrollment_tokens,
    revoke_enrollment_token,
)
from tenants.fleet.agents import lift_fence
from tenants.fleet.appliances import appliance_names, get_appliance
from tenants.models import ApplianceCertificate, EnrollmentToken
from tenants.permissions import Permission
from tenants.pki import admission
from tenants.pki.certificates import (
    CertificateState,
    expiring_certificates,
    list_certificates,
    state_of,
)

pages = Pages("enrollment", __name__)

REENROLL_LIFETIME = timedelta(days=1)
EXPIRES_SOON = timedelta(days=1)


@pages.get("/appliances/tokens")
def tokens() -> ResponseReturnValue:
    """List enrollment tokens."""
    with database() as session:
        page = list_enrollment_tokens(session, current_scope(), **asked_page())
    return render_template("appliances/tokens.html", page=page)


@pages.get("/appliances/tokens/<enrollment_token_id>")
def show_token(enrollment_token_id: str) -> ResponseReturnValue:
    """Show which hosts have enrolled with a token."""
    return render_template("appliances/token.html", **_progress_of(enrollment_token_id))


@pages.form("/appliances/new")
def add() -> ResponseReturnValue:
    """Create an enrollment token and show it once with the enroll command."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    form = EnrollmentForm()
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                token, secret = create_enrollment_token(
                    session,
                    scope,
                    name=form.name.data.strip(),
                    site=form.site.data.strip(),
                    region=form.region.data.strip(),
                    labels=form.labels.data,
                    uses=form.uses.data,
                    lifetime=form.chosen_lifetime,
                    now=now(),
                )
            return _render_token(token, secret)
    return render_template("appliances/new.html", form=form), form.status


pages.acts(
    "/appliances/tokens/<enrollment_token_id>/revoke",
    revoke_enrollment_token,
    "Token revoked",
    back=".tokens",
    name="revoke_token",
)


@pages.post("/appliances/<appliance_id>/reenroll")
def reenroll(appliance_id: str) -> ResponseReturnValue:
    """Create a token that gives one appliance a new identity, and show it once."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        token, secret = create_token_for_appliance(
            session, scope, appliance_id, lifetime=REENROLL_LIFETIME, now=now()
        )
    return _render_token(token, secret, name=appliance.name)


@pages.get("/certificates")
def expiring() -> ResponseReturnValue:
    """List certificates that expire soon because their agents did not renew them."""
    scope = current_scope()
    with database() as session:
        page = expiring_certificates(session, scope, within=EXPIRES_SOON, now=now(), **asked_page())
        names = appliance_names(session, scope.tenants)
    return render_template(
        "appliances/certificates.html", page=page, names=names, state_of=_state_now
    )


@pages.get("/appliances/<appliance_id>/certificates")
def certificates(appliance_id: str) -> ResponseReturnValue:
    """List an appliance's certificates."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        page = list_certificates(session, scope, appliance_id, **asked_page())
    return render_template(
        "appliances/certificates.html", appliance=appliance, page=page, state_of=_state_now
    )


@pages.post("/certificates/<certificate_id>/revoke")
def revoke_certificate(certificate_id: str) -> ResponseReturnValue:
    """Revoke a certificate."""
    with database() as session:
        certificate = admission.revoke_certificate(
            session, current_scope(), certificate_id, now=now()
        )
    flash("Certificate revoked", "success")
    return redirect(url_for(".certificates", appliance_id=certificate.appliance_id))


pages.acts(
    "/appliances/<appliance_id>/allow-renewal",
    admission.readmit_appliance,
    "The agent of {.name} can now renew its certificate.",
    back=".certificates",
)
pages.acts(
    "/appliances/<appliance_id>/unfence", lift_fence, "{.name} unfenced", back="appliances.show"
)


def _state_now(certificate: ApplianceCertificate) -> CertificateState:
    return state_of(certificate, now=now())


def _render_token(token: EnrollmentToken, secret: str, *, name: str = "") -> str:
    is_repeated = token.appliance_id is not None
    return render_template(
        "appliances/token.html",
        **_progress_of(token.id),
        secret_token=secret,
        appliance_name=name,
        problem=wheelhouse_problem(),
        build_command=BUILD_COMMAND,
        install_command=install_command(secret, is_repeated=is_repeated),
        script_sha256=script_sha256(),
        script_url=url_for("install.script"),
        enroll_command=enroll_command(secret, is_repeated=is_repeated),
    )


def _progress_of(token_id: str) -> dict[str, object]:
    progress = enrollment_progress(token_id)
    return {"token": progress.token, "progress": progress, "portal_url": public_url()}

"""An appliance's certificates, those that run out, and the fence around an identity used twice."""

from datetime import timedelta

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from portal.context import current_scope, database, now
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.entry.certificate_list import (
    CertificateState,
    expiring_certificates,
    list_certificates,
    state_of,
)
from tenants.entry.fencing import lift_fence
from tenants.entry.revocation import let_in_again, revoke_certificate
from tenants.fleet.appliances import appliance_names, get_appliance
from tenants.models import ApplianceCertificate

pages = Blueprint("certificates", __name__)

SOON = timedelta(days=1)


@pages.get("/certificates")
def expiring() -> ResponseReturnValue:
    """List the certificates that run out soon because their agents did not renew them."""
    scope = current_scope()
    with database() as session:
        page = expiring_certificates(
            session, scope, within=SOON, now=now(), page=page_number(), page_size=PAGE_SIZE
        )
        names = appliance_names(session, scope.tenants)
    return render_template(
        "appliances/expiring.html", page=page, names=names, state_of=_state_of_now
    )


@pages.get("/appliances/<appliance_id>/certificates")
def index(appliance_id: str) -> ResponseReturnValue:
    """List an appliance's certificates."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        page = list_certificates(
            session, scope, appliance_id, page=page_number(), page_size=PAGE_SIZE
        )
    return render_template(
        "appliances/certificates.html", appliance=appliance, page=page, state_of=_state_of_now
    )


@pages.post("/certificates/<certificate_id>/revoke")
def revoke(certificate_id: str) -> ResponseReturnValue:
    """Refuse a certificate from now on."""
    with database() as session:
        found = revoke_certificate(session, current_scope(), certificate_id, now=now())
    flash("The certificate is revoked: it is refused from now on.", "success")
    return redirect(url_for(".index", appliance_id=found.appliance_id))


@pages.post("/appliances/<appliance_id>/let-in-again")
def readmit(appliance_id: str) -> ResponseReturnValue:
    """Let an agent whose certificate ran out come back by its secret."""
    with database() as session:
        appliance = let_in_again(session, current_scope(), appliance_id, now=now())
    flash(f"The agent of {appliance.name} may get a new certificate by its secret.", "success")
    return redirect(url_for(".index", appliance_id=appliance_id))


@pages.post("/appliances/<appliance_id>/lift-fence")
def unfence(appliance_id: str) -> ResponseReturnValue:
    """Let a fenced appliance's agent in again."""
    with database() as session:
        appliance = lift_fence(session, current_scope(), appliance_id, now=now())
    flash(f"The fence around {appliance.name} is lifted.", "success")
    return redirect(url_for("appliances.show", appliance_id=appliance_id))


def _state_of_now(certificate: ApplianceCertificate) -> CertificateState:
    return state_of(certificate, now=now())

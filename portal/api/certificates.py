"""`/certificates`: the client certificates of agents, and what lets a refused agent reconnect."""

from datetime import timedelta
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.appliances import actions
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    page_query,
    sort_field,
)
from portal.context import current_scope, database, now
from tenants.fleet.agents import lift_fence
from tenants.models import ApplianceCertificate
from tenants.permissions import Permission
from tenants.pki.admission import readmit_appliance, revoke_certificate
from tenants.pki.certificates import (
    CERTIFICATE_SORTS,
    expiring_certificates,
    list_certificates,
    state_of,
)

certificates = APIBlueprint(
    "Certificates",
    "/certificates",
    "Client certificates of agents.",
    changes=Permission.MANAGE_APPLIANCES,
)

MAX_REASON_LENGTH = 500
MAX_HOURS = 24 * 366


class CertificateSchema(Schema):
    """A client certificate of an agent."""

    id = fields.String()
    tenant_id = fields.String()
    appliance_id = fields.String()
    serial = fields.String()
    fingerprint = fields.String(**about("SHA-256, in hex."))
    state = fields.Function(
        lambda certificate: state_of(certificate, now=now()).value,
        **about("Such as `active`, `overdue` or `revoked`.", type="string"),
    )
    not_before = instant()
    not_after = instant()
    issued_at = instant()
    first_used_at = instant()
    replaced_at = instant()
    revoked_at = instant()
    revocation_reason = fields.String()


class ExpiringQuery(PageQuery):
    """Expiry window and order."""

    within_hours = fields.Float(load_default=24.0, validate=validate.Range(min=0, max=MAX_HOURS))
    sort = sort_field(CERTIFICATE_SORTS, default="not_after")


class RevocationSchema(StrictSchema):
    """Reason of a revocation."""

    reason = fields.String(load_default="", validate=validate.Length(max=MAX_REASON_LENGTH))


@certificates.operation("GET", query=ExpiringQuery, answer=page_of(CertificateSchema))
def list_expiring(query: dict[str, Any]) -> dict[str, Any]:
    """List current certificates that expire soon or have expired without renewal."""
    within = timedelta(hours=query.pop("within_hours"))
    with database() as session:
        page = expiring_certificates(session, current_scope(), within=within, now=now(), **query)
    return envelope(page)


@certificates.operation(
    "POST", "/<certificate_id>/revoke", body=RevocationSchema, answer=CertificateSchema
)
def revoke(certificate_id: str, body: dict[str, Any]) -> ApplianceCertificate:
    """Revoke a certificate; the agent must enroll again if it was the current one."""
    with database() as session:
        return revoke_certificate(
            session, current_scope(), certificate_id, reason=body["reason"], now=now()
        )


actions.lists(
    "List the certificates of an appliance, newest first.",
    list_certificates,
    query=page_query(CERTIFICATE_SORTS, default="-issued_at"),
    path="/<appliance_id>/certificates",
    answer=CertificateSchema,
    name="list_of_appliance",
)
actions.acts(
    "Let an agent with an expired certificate renew it once, with its secret.",
    readmit_appliance,
    "allow-renewal",
    name="allow_renewal",
)
actions.acts("Unfence an appliance whose identity two agents used at once.", lift_fence, "unfence")

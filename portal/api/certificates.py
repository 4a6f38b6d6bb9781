"""`/certificates`: agents' client certificates; and the fence around an identity used twice."""

from datetime import timedelta
from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.appliances import ApplianceSchema, appliances
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from tenants.entry.certificate_list import (
    CERTIFICATE_SORTS,
    expiring_certificates,
    list_certificates,
    state_of,
)
from tenants.entry.fencing import lift_fence
from tenants.entry.revocation import let_in_again, revoke_certificate
from tenants.models import Appliance, ApplianceCertificate
from tenants.permissions import Permission

certificates = resource(
    "Certificates",
    "/certificates",
    "Agents' client certificates.",
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
    fingerprint = fields.String(metadata={"description": "SHA-256, in hex."})
    state = fields.Function(
        lambda one: state_of(one, now=now()).value,
        metadata={"type": "string", "description": "`in force`, `overdue`, `revoked`, ..."},
    )
    not_before = instant()
    not_after = instant()
    issued_at = instant()
    first_used_at = instant()
    replaced_at = instant()
    revoked_at = instant()
    revocation_reason = fields.String()


CertificatePageSchema = page_of(CertificateSchema)


class ExpiringQuery(PageQuery):
    """How soon."""

    within_hours = fields.Float(load_default=24.0, validate=validate.Range(min=0, max=MAX_HOURS))
    sort = sort_field(CERTIFICATE_SORTS, default="not_after")


class CertificateQuery(PageQuery):
    """In which order."""

    sort = sort_field(CERTIFICATE_SORTS, default="-issued_at")


class RevocationSchema(StrictSchema):
    """Why a certificate is revoked."""

    reason = fields.String(load_default="", validate=validate.Length(max=MAX_REASON_LENGTH))


@certificates.operation("GET", query=ExpiringQuery, answer=CertificatePageSchema)
def list_expiring(query: dict[str, Any]) -> dict[str, Any]:
    """List the certificates in force that run out soon or have: their agents did not renew."""
    within = timedelta(hours=query.pop("within_hours"))
    with database() as session:
        page = expiring_certificates(session, current_scope(), within=within, now=now(), **query)
    return envelope(page)


@certificates.operation(
    "POST", "/<certificate_id>/revoke", body=RevocationSchema, answer=CertificateSchema
)
def revoke(certificate_id: str, body: dict[str, Any]) -> ApplianceCertificate:
    """Refuse a certificate from now on; the agent of one in force must be enrolled again."""
    with database() as session:
        return revoke_certificate(
            session, current_scope(), certificate_id, reason=body["reason"], now=now()
        )


@appliances.operation(
    "GET", "/<appliance_id>/certificates", query=CertificateQuery, answer=CertificatePageSchema
)
def list_of_appliance(appliance_id: str, query: dict[str, Any]) -> dict[str, Any]:
    """List an appliance's certificates, the newest first."""
    with database() as session:
        return envelope(list_certificates(session, current_scope(), appliance_id, **query))


@appliances.operation("POST", "/<appliance_id>/let-in-again", answer=ApplianceSchema)
def readmit(appliance_id: str) -> Appliance:
    """Let an agent whose certificate ran out get a new one by its secret, once."""
    with database() as session:
        return let_in_again(session, current_scope(), appliance_id, now=now())


@appliances.operation("POST", "/<appliance_id>/lift-fence", answer=ApplianceSchema)
def unfence(appliance_id: str) -> Appliance:
    """Let in an appliance again that was fenced because two agents used its identity."""
    with database() as session:
        return lift_fence(session, current_scope(), appliance_id, now=now())

"""`/invitations`: links that add users to a tenant, or operators."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    envelope,
    instant,
    page_of,
    sort_field,
    values_of,
)
from portal.context import current_scope, database, now
from portal.mail import charge_invitation, send_invitation
from tenants.models import Invitation, Role
from tenants.permissions import Permission
from tenants.users.emails import InvitationDelivery
from tenants.users.invitations import (
    INVITATION_SORTS,
    get_invitation,
    invite,
    list_invitations,
    renew_invitation,
    revoke_invitation,
)

invitations = APIBlueprint(
    "Invitations",
    "/invitations",
    "Open invitations to a tenant.",
    reads=Permission.MANAGE_USERS,
    changes=Permission.MANAGE_USERS,
)


class InvitationSchema(Schema):
    """An invitation; it does not reveal whether the address has an account."""

    id = fields.String()
    tenant_id = fields.String(allow_none=True)
    tenant_name = fields.String(allow_none=True)
    email = fields.String()
    role = fields.Enum(Role, by_value=True)
    created_at = instant()
    expires_at = instant()
    accepted_at = instant()
    revoked_at = instant()


class SentInvitationSchema(InvitationSchema):
    """An invitation with its new link."""

    is_sent = fields.Boolean(metadata={"description": "Whether the link was sent by email."})
    link = fields.String(
        allow_none=True,
        metadata={"description": "The link to pass on, shown only once; null if it was sent."},
    )


class InvitationRequestSchema(StrictSchema):
    """A new invitation; operators set `tenant_id`, or omit it to invite an operator."""

    tenant_id = fields.String(load_default=None, allow_none=True)
    email = fields.String(required=True)
    role = fields.Enum(Role, by_value=True, load_default=Role.MEMBER)


class InvitationQuery(PageQuery):
    """Filters of the list."""

    tenant_id = fields.String(load_default=None)
    sort = sort_field(INVITATION_SORTS, default="-created_at")


@invitations.operation("GET", query=InvitationQuery, answer=page_of(InvitationSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the open invitations of your tenant, newest first; operators see all."""
    with database() as session:
        page = list_invitations(session, current_scope(), **query)
    return envelope(page, [_shaped(invitation) for invitation in page.items])


@invitations.operation(
    "POST", body=InvitationRequestSchema, answer=SentInvitationSchema, status=HTTPStatus.CREATED
)
def add(body: dict[str, Any]) -> dict[str, Any]:
    """Invite a user by email; without a mail server the response has the link to pass on."""
    scope = current_scope()
    tenant_id = body["tenant_id"] or scope.tenant_id
    with database() as session:
        made = invite(
            session, scope, tenant_id=tenant_id, email=body["email"], role=body["role"], now=now()
        )
        charge_invitation(session)
    return _sent(send_invitation(*made))


@invitations.operation("GET", "/<invitation_id>", answer=InvitationSchema)
def show(invitation_id: str) -> dict[str, Any]:
    """Return an invitation, including accepted and revoked ones."""
    with database() as session:
        return _shaped(get_invitation(session, current_scope(), invitation_id))


@invitations.operation("POST", "/<invitation_id>/resend", answer=SentInvitationSchema)
def resend(invitation_id: str) -> dict[str, Any]:
    """Send a new link; the previous one stops working."""
    with database() as session:
        made = renew_invitation(session, current_scope(), invitation_id, now=now())
        charge_invitation(session)
    return _sent(send_invitation(*made))


@invitations.operation("DELETE", "/<invitation_id>", status=HTTPStatus.NO_CONTENT)
def revoke(invitation_id: str) -> None:
    """Revoke an open invitation."""
    with database() as session:
        invitations.check_if_match(
            session,
            Invitation,
            invitation_id,
            lambda: _shaped(get_invitation(session, current_scope(), invitation_id)),
            InvitationSchema,
        )
        revoke_invitation(session, current_scope(), invitation_id, now=now())


def _shaped(invitation: Invitation) -> dict[str, Any]:
    tenant = invitation.tenant
    return values_of(InvitationSchema, invitation, tenant_name=tenant and tenant.name)


def _sent(outcome: InvitationDelivery) -> dict[str, Any]:
    return _shaped(outcome.invitation) | {"is_sent": outcome.link is None, "link": outcome.link}

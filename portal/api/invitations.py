"""`/invitations`: links that make people members of a tenant, or operators."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from portal.inviting import Outcome, send_invitation
from tenants.models import Invitation, Role
from tenants.people.invitations import (
    INVITATION_SORTS,
    get_invitation,
    invite,
    list_invitations,
    renew_invitation,
    revoke_invitation,
)
from tenants.permissions import Permission

invitations = resource(
    "Invitations",
    "/invitations",
    "People who were invited.",
    reads=Permission.MANAGE_USERS,
    changes=Permission.MANAGE_USERS,
)


class InvitationSchema(Schema):
    """Somebody who was invited. It says nothing about whether they have an account."""

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
    """An invitation at the moment its link is made."""

    is_sent = fields.Boolean(metadata={"description": "Whether the link went out by email."})
    link = fields.String(
        allow_none=True,
        metadata={"description": "To pass on, shown only now; null where it was sent."},
    )


class InvitationRequestSchema(StrictSchema):
    """Whom to invite; the operator names a tenant, or invites an operator without one."""

    tenant_id = fields.String(load_default=None, allow_none=True)
    email = fields.String(required=True)
    role = fields.Enum(Role, by_value=True, load_default=Role.MEMBER)


class InvitationQuery(PageQuery):
    """Which invitations."""

    tenant_id = fields.String(load_default=None)
    sort = sort_field(INVITATION_SORTS, default="-created_at")


@invitations.operation("GET", query=InvitationQuery, answer=page_of(InvitationSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the open invitations of your tenant, the newest first; the operator sees all."""
    with database() as session:
        page = list_invitations(session, current_scope(), **query)
    return envelope(page, [_shaped(one) for one in page.items])


@invitations.operation(
    "POST",
    body=InvitationRequestSchema,
    answer=SentInvitationSchema,
    status=HTTPStatus.CREATED,
)
def add(body: dict[str, Any]) -> dict[str, Any]:
    """Invite somebody by email; without a mail server you get the link to pass on."""
    scope = current_scope()
    tenant_id = body["tenant_id"] or scope.tenant_id
    with database() as session:
        made = invite(
            session, scope, tenant_id=tenant_id, email=body["email"], role=body["role"], now=now()
        )
    return _sent(send_invitation(*made))


@invitations.operation("GET", "/<invitation_id>", answer=InvitationSchema)
def show(invitation_id: str) -> dict[str, Any]:
    """Return an invitation, also one that was accepted or revoked."""
    with database() as session:
        return _shaped(get_invitation(session, current_scope(), invitation_id))


@invitations.operation("POST", "/<invitation_id>/resend", answer=SentInvitationSchema)
def resend(invitation_id: str) -> dict[str, Any]:
    """Make a new link and send it; the old one works no more."""
    with database() as session:
        made = renew_invitation(session, current_scope(), invitation_id, now=now())
    return _sent(send_invitation(*made))


@invitations.operation("DELETE", "/<invitation_id>", status=HTTPStatus.NO_CONTENT, row=Invitation)
def revoke(invitation_id: str) -> None:
    """Take an open invitation back."""
    with database() as session:
        revoke_invitation(session, current_scope(), invitation_id, now=now())


def _shaped(invitation: Invitation) -> dict[str, Any]:
    tenant = invitation.tenant
    return {
        "id": invitation.id,
        "tenant_id": invitation.tenant_id,
        "tenant_name": None if tenant is None else tenant.name,
        "email": invitation.email,
        "role": invitation.role,
        "created_at": invitation.created_at,
        "expires_at": invitation.expires_at,
        "accepted_at": invitation.accepted_at,
        "revoked_at": invitation.revoked_at,
    }


def _sent(outcome: Outcome) -> dict[str, Any]:
    return _shaped(outcome.invitation) | {
        "is_sent": outcome.link is None,
        "link": outcome.link,
    }

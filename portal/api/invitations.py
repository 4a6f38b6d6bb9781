"""`/invitations`: links that add users to a tenant, or operators."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import PageQuery, StrictSchema, about, instant, sort_field, values_of
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

    is_sent = fields.Boolean(**about("Whether the link was sent by email."))
    link = fields.String(
        allow_none=True, **about("The link to pass on, shown only once; null if it was sent.")
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


def _with_tenant(invitation: Invitation) -> dict[str, Any]:
    tenant = invitation.tenant
    return values_of(InvitationSchema, invitation, tenant_name=tenant and tenant.name)


objects = Objects(
    invitations,
    "/<invitation_id>",
    read=get_invitation,
    answer=InvitationSchema,
    shown=lambda _session, rows: [_with_tenant(invitation) for invitation in rows],
    model=Invitation,
)
objects.lists(
    "List the open invitations of your tenant, newest first; operators see all.",
    list_invitations,
    query=InvitationQuery,
)


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


objects.shows("Return an invitation, including accepted and revoked ones.")


@invitations.operation("POST", "/<invitation_id>/resend", answer=SentInvitationSchema)
def resend(invitation_id: str) -> dict[str, Any]:
    """Send a new link; the previous one stops working."""
    with database() as session:
        made = renew_invitation(session, current_scope(), invitation_id, now=now())
        charge_invitation(session)
    return _sent(send_invitation(*made))


objects.deletes("Revoke an open invitation.", revoke_invitation, name="revoke")


def _sent(outcome: InvitationDelivery) -> dict[str, Any]:
    return _with_tenant(outcome.invitation) | {
        "is_sent": outcome.link is None,
        "link": outcome.link,
    }

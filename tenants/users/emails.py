"""Emails with a link: their content, and the delivery of invitations."""

from collections.abc import Callable
from dataclasses import dataclass

from core.errors import UnavailableError
from tenants.models import Invitation, Role, User


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """An email with a link, its label, and the `ending` after it."""

    to: str
    subject: str
    text: str
    link: str
    link_name: str
    ending: str


@dataclass(frozen=True, slots=True)
class InvitationDelivery:
    """The result of sending an invitation: the link to pass on, if it was not sent, and why.

    `error` is empty without a mail server.
    """

    invitation: Invitation
    link: str | None
    error: str = ""


def deliver_invitation(
    invitation: Invitation, link: str, *, inviter: User, send: Callable[[Email], None] | None
) -> InvitationDelivery:
    """Send an invitation; call it after the transaction that created the link.

    `send` is None without a mail server.
    """
    if send is None:
        return InvitationDelivery(invitation, link)
    name = invitation_target(invitation)
    role = "" if invitation.role is Role.OPERATOR else f" as {invitation.role.value}"
    email = Email(
        to=invitation.email,
        subject=f"Invitation to {name}",
        text=f"{inviter.name} ({inviter.email}) invites you to join {name}{role}.",
        link=link,
        link_name="Accept the invitation",
        ending="The link works once and expires after seven days.",
    )
    try:
        send(email)
    except UnavailableError as error:
        return InvitationDelivery(invitation, link, error.message)
    return InvitationDelivery(invitation, None)


def invitation_target(invitation: Invitation) -> str:
    """Return the name of what an invitation is to."""
    return "the operators of Vedette" if invitation.tenant is None else invitation.tenant.name

"""Invitations on their way: sent by email, or handed to the inviter where that can't be."""

from dataclasses import dataclass

from core.errors import UnavailableError
from core.settings import secret_key
from portal.context import current_user, now, portal
from portal.mail import Letter, can_send, send_letter
from tenants.models import Invitation, Role
from tenants.people.links import Purpose, make_link


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an invitation's link.

    Attributes:
        invitation: whom it invites.
        link: for the inviter to pass on; None where it was sent.
        fault: why it was not sent, where there is a mail server.
    """

    invitation: Invitation
    link: str | None
    fault: str = ""


def send_invitation(invitation: Invitation, secret: str) -> Outcome:
    """Send an invitation that was just made or renewed, after its transaction."""
    settings = portal().settings
    link = make_link(
        Purpose.INVITATION,
        secret,
        key=secret_key(settings),
        public_url=settings.resolved_public_url,
    )
    if not can_send(settings):
        return Outcome(invitation, link)
    try:
        send_letter(settings, _letter(invitation, link), now=now())
    except UnavailableError as error:
        return Outcome(invitation, link, error.message)
    return Outcome(invitation, None)


def place_of(invitation: Invitation) -> str:
    """Return what an invitation is to."""
    return "the operators of Vedette" if invitation.tenant is None else invitation.tenant.name


def _letter(invitation: Invitation, link: str) -> Letter:
    place, inviter = place_of(invitation), current_user()
    role = "" if invitation.role is Role.OPERATOR else f" as {invitation.role.value}"
    return Letter(
        to=invitation.email,
        subject=f"Invitation to {place}",
        text=f"{inviter.name} ({inviter.email}) invites you to join {place}{role}.",
        link=link,
        link_name="Accept the invitation",
        ending="The link works once and for seven days.",
    )

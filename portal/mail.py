"""Sends account emails: invitations and password resets."""

from datetime import datetime
from functools import partial
from html import escape

from sqlalchemy.orm import Session

from alerting.notification.messages import Message
from alerting.notification.senders.notify import EmailSender
from core.ids import new_id
from core.settings import ServerSettings, secret_key
from portal.context import current_scope, current_user, now, portal
from tenants.lifecycle.message_budgets import MESSAGES, MessageBudgets, charge_user, count_message
from tenants.models import Invitation
from tenants.users.emails import Email, InvitationDelivery, deliver_invitation
from tenants.users.resets import Purpose, make_link


def can_send(settings: ServerSettings) -> bool:
    """Return whether a mail server is configured."""
    return bool(settings.smtp_url)


def send_invitation(invitation: Invitation, secret: str) -> InvitationDelivery:
    """Send a new link of an invitation by email, or return it without a mail server."""
    settings = portal().settings
    link = make_link(
        Purpose.INVITATION,
        secret,
        key=secret_key(settings),
        public_url=settings.resolved_public_url,
    )
    send = partial(send_email, settings, now=now()) if can_send(settings) else None
    return deliver_invitation(invitation, link, inviter=current_user(), send=send)


def charge_message(session: Session) -> None:
    """Count a message that the current user causes.

    Raises:
        OverloadedError: the user or the tenant has sent as many as they may within an hour.
    """
    charge_user(session, current_scope(), MessageBudgets.of(portal().settings), now=now())


def charge_invitation(session: Session) -> None:
    """Count an invitation, of which an email is sent if a mail server is configured."""
    if not can_send(portal().settings):
        return
    charge_message(session)
    tenant_id = current_scope().tenant_id
    if tenant_id is not None:
        count_message(session, tenant_id, MESSAGES, MessageBudgets(), now=now())


def send_email(settings: ServerSettings, email: Email, *, now: datetime) -> None:
    """Send an email.

    Raises:
        DeliveryError: the mail server rejected it or is unavailable.
    """
    sender = EmailSender(settings.smtp_url, settings.mail_from)
    sender.deliver(email.to, _message(email, now=now))


def _message(email: Email, *, now: datetime) -> Message:
    # Names of tenants may contain line breaks; a header must not.
    subject = " ".join(email.subject.split())
    text = f"{email.text}\n\n{email.link_name}:\n{email.link}\n\n{email.ending}\n"
    html = (
        f"<p>{escape(email.text)}</p>"
        f'<p><a href="{escape(email.link)}">{escape(email.link_name)}</a></p>'
        f"<p>{escape(email.ending)}</p>"
    )
    return Message(id=new_id(), created_at=now, subject=subject, text=text, html=html, payload={})

"""Emails to people about their accounts: a sentence or two, and a link."""

import logging
from dataclasses import dataclass
from datetime import datetime
from html import escape

from alerting.messages import Message
from alerting.notify import EmailSender
from core.errors import UnavailableError
from core.ids import new_id
from core.settings import ServerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """An email with a link.

    Attributes:
        to: the address.
        subject: one line.
        text: what it is about.
        link: the address to open.
        link_name: what opening it does.
        ending: what else there is to know.
    """

    to: str
    subject: str
    text: str
    link: str
    link_name: str
    ending: str


def can_send(settings: ServerSettings) -> bool:
    """Whether there is a mail server."""
    return bool(settings.smtp_url)


def send_letter(settings: ServerSettings, letter: Letter, *, now: datetime) -> None:
    """Deliver a letter.

    Raises:
        DeliveryError: says why the mail server did not take it.
    """
    sender = EmailSender(settings.smtp_url, settings.mail_from)
    sender.deliver(letter.to, _message(letter, now=now))


def send_or_log(settings: ServerSettings, letter: Letter, *, now: datetime) -> None:
    """Deliver a letter where nobody waits to be told; the log says why it could not be."""
    try:
        send_letter(settings, letter, now=now)
    except UnavailableError as error:
        log.warning("%r was not delivered: %s", letter.subject, error.message)


def _message(letter: Letter, *, now: datetime) -> Message:
    # What people called a tenant may hold line breaks; a header must not.
    subject = " ".join(letter.subject.split())
    text = f"{letter.text}\n\n{letter.link_name}:\n{letter.link}\n\n{letter.ending}\n"
    html = (
        f"<p>{escape(letter.text)}</p>"
        f'<p><a href="{escape(letter.link)}">{escape(letter.link_name)}</a></p>'
        f"<p>{escape(letter.ending)}</p>"
    )
    return Message(id=new_id(), created_at=now, subject=subject, text=text, html=html, payload={})

"""The email to the operators about a mass outage."""

import logging
from datetime import datetime
from html import escape

from alerting.messages import Message
from alerting.notify import DeliveryError, EmailSender
from core.db import SessionFactory, transaction
from tenants.fleet.liveness import mark_reported, operators, unreported_outage
from tenants.models import FleetOutage

log = logging.getLogger(__name__)

_SUSPICION = (
    "The portal or its network may be the cause, so the mass-outage guard is active: no "
    "appliance and no job is marked as lost until enough appliances report again. Check the agent "
    "API, its certificates and its network."
)
_RELEASE = "If the appliances are really down, release the guard in the banner of any page."


def email_operators(
    sessions: SessionFactory, sender: EmailSender | None, *, public_url: str, now: datetime
) -> int:
    """Send the email about an unreported outage; return the number of delivered emails.

    If none is delivered, the next call retries. Without a sender only the log and the banner on the
    pages report the outage.
    """
    with transaction(sessions) as session:
        outage = unreported_outage(session)
        addresses = [user.email for user in operators(session)]
    if outage is None:
        return 0
    message = outage_message(outage, public_url=public_url, now=now)
    reached = 0 if sender is None else _deliver(sender, addresses, message)
    if reached or sender is None or not addresses:
        with transaction(sessions) as session:
            mark_reported(session, outage.id, now=now)
    return reached


def outage_message(outage: FleetOutage, *, public_url: str, now: datetime) -> Message:
    """Return the email about an outage; retries have the same id."""
    since = f"{outage.began_at:%Y-%m-%d %H:%M:%S} UTC"
    silent = f"{outage.unreachable_count} of {outage.fleet_count} appliances"
    subject = f"[CRITICAL] {silent} stopped reporting"
    paragraphs = [f"{silent} have not reported since {since}.", _SUSPICION, _RELEASE]
    link = f"{public_url}/appliances?status=unreachable"
    text = "\n\n".join([*paragraphs, link])
    html = "".join(f"<p>{escape(one)}</p>" for one in paragraphs)
    html += f'<p><a href="{escape(link)}">Unreachable appliances</a></p>'
    return Message(
        id=outage.id, created_at=now, subject=subject, text=f"{text}\n", html=html, payload={}
    )


def _deliver(sender: EmailSender, addresses: list[str], message: Message) -> int:
    reached = 0
    for address in addresses:
        try:
            sender.deliver(address, message)
            reached += 1
        except DeliveryError as error:
            log.warning("can't email the outage to %s: %s", address, error.message)
    return reached

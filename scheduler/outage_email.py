"""The email to the operators about a mass outage."""

import logging
from collections.abc import Mapping
from datetime import datetime, tzinfo
from html import escape

from alerting.notification.messages import Message
from alerting.notification.senders.notify import DeliveryError, EmailSender
from core.db import SessionFactory, transaction
from core.zones import SECONDS, instant_text, zone_of
from tenants.fleet.liveness import mark_reported, operators, unreported_outage
from tenants.models import FleetOutage
from tenants.users.time_zones import zone_name_of

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
        zones = {user.email: zone_of(zone_name_of(user)) for user in operators(session)}
    if outage is None:
        return 0
    messages = {
        address: outage_message(outage, zone, public_url=public_url, now=now)
        for address, zone in zones.items()
    }
    reached = 0 if sender is None else _deliver(sender, messages)
    if reached or sender is None or not messages:
        with transaction(sessions) as session:
            mark_reported(session, outage.id, now=now)
    return reached


def outage_message(outage: FleetOutage, zone: tzinfo, *, public_url: str, now: datetime) -> Message:
    """Return the email about an outage; retries have the same id."""
    since = instant_text(outage.began_at, zone, SECONDS)
    silent = f"{outage.unreachable_count} of {outage.fleet_count} appliances"
    subject = f"[CRITICAL] {silent} stopped reporting"
    paragraphs = [f"{silent} have not reported since {since}.", _SUSPICION, _RELEASE]
    link = f"{public_url}/appliances?status=unreachable"
    text = "\n\n".join([*paragraphs, link])
    html = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    html += f'<p><a href="{escape(link)}">Unreachable appliances</a></p>'
    return Message(
        id=outage.id, created_at=now, subject=subject, text=f"{text}\n", html=html, payload={}
    )


def _deliver(sender: EmailSender, messages: Mapping[str, Message]) -> int:
    reached = 0
    for address, message in messages.items():
        try:
            sender.deliver(address, message)
            reached += 1
        except DeliveryError as error:
            log.warning("can't email the outage to %s: %s", address, error.message)
    return reached

"""The one email that tells the operators that the brake on mass outages holds."""

import logging
from datetime import datetime
from html import escape

from alerting.messages import Message
from alerting.notify import DeliveryError, EmailSender
from core.db import SessionFactory, transaction
from tenants.fleet.outages import mark_told, operators, untold_outage
from tenants.models import FleetOutage

log = logging.getLogger(__name__)

_SUSPICION = (
    "The portal or its network may be at fault, so the brake holds: no appliance is called lost "
    "and no job is placed anew until enough of them are heard again. Look at the agents' door, its "
    "certificates and the network before it."
)
_RELEASE = "If the appliances are gone indeed, release the brake in the banner of any page."


def tell_operators(
    sessions: SessionFactory, sender: EmailSender | None, *, public_url: str, now: datetime
) -> int:
    """Send the email of an outage that nobody was told of; return how many it reached.

    Where it reaches nobody it is tried again at the next call. Without a sender the log and the
    banner on the pages have to do.
    """
    with transaction(sessions) as session:
        outage = untold_outage(session)
        addresses = [user.email for user in operators(session)]
    if outage is None:
        return 0
    message = outage_message(outage, public_url=public_url, now=now)
    reached = 0 if sender is None else _deliver(sender, addresses, message)
    if reached or sender is None or not addresses:
        with transaction(sessions) as session:
            mark_told(session, outage.id, now=now)
    return reached


def outage_message(outage: FleetOutage, *, public_url: str, now: datetime) -> Message:
    """Return the email about an outage; its id is the same at every try."""
    subject = f"[CRITICAL] {outage.silent_count} of {outage.fleet_count} appliances fell silent"
    since = f"{outage.began_at:%Y-%m-%d %H:%M:%S} UTC"
    silent = f"{outage.silent_count} of {outage.fleet_count} appliances"
    paragraphs = [f"Since {since}, {silent} are silent together.", _SUSPICION, _RELEASE]
    link = f"{public_url}/appliances?life=unreachable"
    text = "\n\n".join([*paragraphs, link])
    html = "".join(f"<p>{escape(one)}</p>" for one in paragraphs)
    html += f'<p><a href="{escape(link)}">The silent appliances</a></p>'
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
            log.warning("the alert of the outage did not reach %s: %s", address, error.message)
    return reached

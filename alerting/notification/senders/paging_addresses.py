"""Makes PagerDuty and Opsgenie receivers of chat receivers that earlier versions accepted.

Through apprise, PagerDuty got a second incident when an alert had resolved, and Opsgenie nothing.
"""

import logging
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from sqlalchemy import select

from alerting.models import Receiver
from alerting.notification.receivers import KEY_PATTERNS, signing_key
from alerting.notification.senders.chat_addresses import REPLACED
from alerting.states import PAGING_URLS, ReceiverKind, Region
from core.db import SessionFactory, transaction
from core.errors import UnavailableError
from core.secretbox import SecretBox

logger = logging.getLogger(__name__)


def convert_addresses(sessions: SessionFactory, box: SecretBox) -> int:
    """Convert the chat receivers of paging services; return how many.

    Those with options, such as the teams to notify, are left to apprise: without them others
    would be paged.
    """
    converted = 0
    shown = [f"{scheme}://…" for scheme in sorted(REPLACED)]
    chats = select(Receiver).where(Receiver.kind == ReceiverKind.CHAT, Receiver.target.in_(shown))
    with transaction(sessions) as session:
        for receiver in session.scalars(chats):
            try:
                url = urlsplit(signing_key(receiver, box))
            except UnavailableError as error:
                logger.warning("receiver %s: %s", receiver.name, error.message)
                continue
            kind, key, region = ReceiverKind(url.scheme), _key(url), _region(url)
            if region is None or KEY_PATTERNS[kind].fullmatch(key) is None:
                logger.warning(
                    "receiver %s has an address of apprise with options. Its incidents are not "
                    "resolved: replace it by a receiver of the type %s.",
                    receiver.name,
                    kind.value,
                )
                continue
            receiver.kind, receiver.secret = kind, box.encrypt(key)
            receiver.target = PAGING_URLS[kind, region]
            converted += 1
    return converted


def _key(url: SplitResult) -> str:
    if url.scheme == ReceiverKind.PAGERDUTY:
        return unquote(url.username or "")
    return unquote(url.netloc)


def _region(url: SplitResult) -> Region | None:
    """Return the region of an address; None if it has other options."""
    options = parse_qs(url.query)
    regions = options.pop("region", [Region.US.value])
    if options or url.path.strip("/") or url.fragment or regions[0].lower() not in set(Region):
        return None
    return Region(regions[0].lower())

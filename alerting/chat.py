"""Sender to chat and paging services through apprise: `slack://TOKEN_A/TOKEN_B/TOKEN_C`.

Apprise logs its errors, which are read from there.
"""

import logging
import re
from urllib.parse import urlsplit

from alerting.chat_addresses import SERVICES, chat_errors
from alerting.messages import Message
from alerting.models import Receiver
from alerting.notify import DeliveryError
from alerting.receivers import signing_key
from alerting.states import AlertState, Severity
from core.errors import UnavailableError
from core.secretbox import SecretBox

TIMEOUT_SECONDS = 10.0
_STATUS = re.compile(r"error[= ]*(\d{3})")


class ChatSender:
    """Sends the text of a message; the address of a receiver is its secret.

    Args:
        box: decrypts the addresses.
        services: the allowed schemes of addresses.
    """

    def __init__(self, *, box: SecretBox, services: frozenset[str] = SERVICES) -> None:
        self._box = box
        self._services = services

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one message."""
        # 15 MiB that deployments without chat services save.
        from apprise import Apprise, LogCapture, NotifyType  # noqa: PLC0415
        from apprise.plugins import NotifyBase  # noqa: PLC0415

        try:
            target = signing_key(receiver, self._box)
        except UnavailableError as error:
            raise DeliveryError(error.message) from error
        errors = chat_errors(target, services=self._services)
        service = None if errors else Apprise.instantiate(target)
        if not isinstance(service, NotifyBase):
            raise DeliveryError(" ".join(errors) or "The address is not complete.")
        service.socket_connect_timeout = service.socket_read_timeout = TIMEOUT_SECONDS
        with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call] # apprise's
            sent = service.notify(
                body=message.text, title=message.subject, notify_type=NotifyType(_kind(message))
            )
            found = _STATUS.search(log.getvalue()) if log is not None else None
        if not sent:
            why = f"responded {found[1]}" if found else "did not accept the message"
            raise DeliveryError(f"{service.service_name or urlsplit(target).scheme} {why}.")


def _kind(message: Message) -> str:
    """Return the type of a notification in the words of apprise."""
    state = message.payload.get("state")
    if state == AlertState.RESOLVED:
        return "success"
    if state is None:
        return "info"
    return "failure" if message.payload.get("severity") == Severity.CRITICAL else "warning"

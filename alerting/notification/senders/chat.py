"""Sender to chat services through apprise: `slack://TOKEN_A/TOKEN_B/TOKEN_C`."""

from alerting.models import Receiver
from alerting.notification.messages import Message
from alerting.notification.receivers import signing_key
from alerting.notification.senders.chat_addresses import (
    REPLACED,
    SERVICES,
    Services,
    chat_errors,
    chat_service,
)
from alerting.notification.senders.notify import DeliveryError
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from alerting.states import AlertState, Severity
from core.errors import UnavailableError
from core.secretbox import SecretBox

TIMEOUT_SECONDS = 10.0


class ChatSender:
    """Sends the text of a message; the address of a receiver is its secret.

    Args:
        box: decrypts the addresses.
        policy: which network addresses may be reached.
        services: the allowed schemes of addresses.
    """

    def __init__(
        self,
        *,
        box: SecretBox,
        policy: AddressPolicy | None = None,
        services: Services = SERVICES | REPLACED,
    ) -> None:
        self._box = box
        self._client = WebhookClient(TIMEOUT_SECONDS, policy=policy or AddressPolicy())
        self._services = services

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one message."""
        # 15 MiB that deployments without chat services save.
        from apprise import NotifyType  # noqa: PLC0415

        from alerting.notification.senders.chat_requests import ChatTraffic, delivering  # noqa: PLC0415

        try:
            target = signing_key(receiver, self._box)
        except UnavailableError as error:
            raise DeliveryError(error.message) from error
        errors = chat_errors(target, services=self._services)
        apprise_service = None if errors else chat_service(target)
        if apprise_service is None:
            raise DeliveryError(" ".join(errors) or "The address is not complete.")
        service = self._services[target.partition("://")[0]]
        traffic = ChatTraffic(service, self._client)
        with delivering(traffic):
            is_sent = apprise_service.notify(
                body=message.text, title=message.subject, notify_type=NotifyType(_kind(message))
            )
        if not is_sent:
            raise DeliveryError(
                f"{service.name} {traffic.failure or 'did not accept the message'}."
            )


def _kind(message: Message) -> str:
    """Return the type of a notification in the words of apprise."""
    state = message.payload.get("state")
    if state == AlertState.RESOLVED:
        return "success"
    if state is None:
        return "info"
    kinds = {Severity.CRITICAL.value: "failure", Severity.INFO.value: "info"}
    return kinds.get(message.payload.get("severity", ""), "warning")

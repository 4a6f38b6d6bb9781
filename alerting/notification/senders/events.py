"""Webhooks of events: CloudEvents in JSON, signed as Standard Webhooks.

Sources: CloudEvents 1.0.2 with HTTP binding (structured mode) and JSON format; Standard Webhooks
1.0.0 (standardwebhooks.com), whose libraries verify the signature.
"""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from alerting.models import Receiver
from alerting.notification.messages import Message
from alerting.notification.receivers import EVENT_SECRET_PREFIX, signing_key
from alerting.notification.senders.notify import DeliveryError, delivered, retry_after_seconds
from alerting.notification.senders.webhooks import AddressPolicy, WebhookClient
from core.clock import Clock, utc_now
from core.errors import UnavailableError
from core.secretbox import SecretBox

MEDIA_TYPE = "application/cloudevents+json"
TYPE_PREFIX = "vedette."


class EventSender:
    """Posts events to receivers of the kind `events`.

    Args:
        timeout_seconds: limit for connecting to an address, and then for the whole response.
        box: decrypts the keys of receivers.
        policy: which addresses may be reached.
        source: the portal's URL, which is the `source` of the events.
        clock: time of the signature.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        box: SecretBox,
        policy: AddressPolicy,
        source: str,
        clock: Clock = utc_now,
    ) -> None:
        self._client = WebhookClient(timeout_seconds, policy=policy)
        self._box = box
        self._source = source
        self._clock = clock

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one event; any response but 2xx is a failure, and 410 a final one."""
        body = json.dumps(self._event(message), ensure_ascii=False).encode()
        try:
            key = signing_key(receiver, self._box)
        except UnavailableError as error:
            raise DeliveryError(error.message) from error
        timestamp = str(int(self._clock().timestamp()))
        headers = {
            "Content-Type": f"{MEDIA_TYPE}; charset=utf-8",
            "User-Agent": "vedette",
            "webhook-id": message.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(key, message.id, timestamp, body),
        }
        host = urlsplit(receiver.target).netloc.rpartition("@")[2]
        with delivered(f"The webhook at {host}"):
            response, _ = self._client.request("POST", receiver.target, body=body, headers=headers)
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise DeliveryError(
                f"The webhook at {host} responded {response.status} {response.reason}",
                retry_after_seconds=retry_after_seconds(response),
                is_final=response.status == HTTPStatus.GONE,
            )

    def _event(self, message: Message) -> dict[str, Any]:
        """Return the event of a message; other messages, such as tests, become events, too."""
        event = message.payload.get("event")
        if isinstance(event, dict):
            return {**event, "source": self._source}
        return {
            **cloud_event(
                "test" if "rule" not in message.payload else "alert.notification",
                message.id,
                at=message.created_at,
                subject=message.payload.get("alert_id", ""),
                data=message.payload,
            ),
            "source": self._source,
        }


def cloud_event(
    kind: str, ident: str, *, at: datetime, subject: str, data: dict[str, Any]
) -> dict[str, Any]:
    """Return an event without its source, as the outbox stores it.

    Args:
        kind: what happened, such as `job.failed`.
        ident: the same whenever the event is delivered.
        at: when it happened.
        subject: id of the object that it is about.
        data: more of it.
    """
    return {
        "specversion": "1.0",
        "id": ident,
        "type": f"{TYPE_PREFIX}{kind}",
        "time": at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        **({"subject": subject} if subject else {}),
        "data": data,
    }


def signature(key: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the value of `webhook-signature`: base64 of HMAC-SHA256, after its version."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    digest = hmac.new(
        base64.b64decode(key.removeprefix(EVENT_SECRET_PREFIX)), signed, hashlib.sha256
    )
    return f"v1,{base64.b64encode(digest.digest()).decode()}"

"""PagerDuty as a receiver: events that open, update, acknowledge and resolve incidents.

Source: https://developer.pagerduty.com/docs/events-api-v2-overview
"""

from typing import Any

from alerting.models import Receiver
from alerting.notification.messages import ACKNOWLEDGEMENT, Message
from alerting.notification.senders.paging import (
    CLIENT,
    Incident,
    PagingClient,
    clipped,
    incident_of,
)

# Documented of the summary.
MAX_TEXT_LENGTH = 1024
PATH = "/v2/enqueue"


class PagerDutySender:
    """Sends events with the receiver's integration key."""

    def __init__(self, client: PagingClient) -> None:
        self._client = client

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one message."""
        incident = incident_of(receiver, message)
        if message.reopens:
            # An acknowledged incident does not page again; a new one does.
            self._post(receiver, _short_event(incident, "resolve"))
        if message.payload.get("kind") == ACKNOWLEDGEMENT:
            self._post(receiver, _short_event(incident, "acknowledge"))
        elif incident.is_active:
            self._post(receiver, _trigger(incident, message))
        else:
            self._post(receiver, _short_event(incident, "resolve"))

    def _post(self, receiver: Receiver, event: dict[str, Any]) -> None:
        key = self._client.key_of(receiver)
        self._client.send(receiver.target + PATH, {"routing_key": key, **event})


def _short_event(incident: Incident, action: str) -> dict[str, Any]:
    return {"event_action": action, "dedup_key": incident.key}


def _trigger(incident: Incident, message: Message) -> dict[str, Any]:
    first, links = incident.alerts[0], incident.links
    others = {tag: text for tag, text in first.get("tags", {}).items() if tag != "appliance"}
    texts = {
        "summary": message.subject,
        "source": incident.source,
        "severity": incident.severity.value,
        "timestamp": first.get("at") or message.created_at.isoformat(),
        "component": " ".join(f"{tag} {text}" for tag, text in sorted(others.items())),
        "group": first.get("tenant", ""),
        "class": first.get("rule", ""),
    }
    payload: dict[str, Any] = {
        name: clipped(text, MAX_TEXT_LENGTH) for name, text in texts.items() if text
    }
    return _short_event(incident, "trigger") | {
        "payload": payload | {"custom_details": incident.details},
        "links": [{"href": url, "text": name} for name, url in links],
        "client": CLIENT,
        **({"client_url": links[0][1]} if links else {}),
    }

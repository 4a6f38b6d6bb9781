"""Opsgenie as a receiver: alerts that are created, updated, acknowledged and closed by alias.

To create an alert that is open only counts it: its message and priority are changed apart.

Source: https://docs.opsgenie.com/docs/alert-api
"""

from collections.abc import Mapping
from http import HTTPMethod
from typing import Any
from urllib.parse import quote

from alerting.models import Receiver
from alerting.notification.messages import ACKNOWLEDGEMENT, Message
from alerting.notification.senders.paging import (
    CLIENT,
    Incident,
    PagingClient,
    clipped,
    incident_of,
)
from alerting.states import Severity

PATH = "/v2/alerts"
MAX_MESSAGE_LENGTH = 130
MAX_DESCRIPTION_LENGTH = 15_000
MAX_DETAILS_LENGTH = 8_000
MAX_TAG_LENGTH = 50
MAX_ENTITY_LENGTH = 512
PRIORITIES = {Severity.CRITICAL: "P1", Severity.WARNING: "P3", Severity.INFO: "P5"}


class OpsgenieSender:
    """Sends requests with the API key of the receiver's integration."""

    def __init__(self, client: PagingClient) -> None:
        self._client = client

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver one message."""
        incident = incident_of(receiver, message)
        if message.payload.get("kind") == ACKNOWLEDGEMENT:
            self._change(receiver, incident, "acknowledge", {"source": CLIENT})
        elif not incident.is_active:
            self._change(receiver, incident, "close", {"source": CLIENT})
        else:
            self._send(receiver, "", _created(incident, message))
            subject = {"message": clipped(message.subject, MAX_MESSAGE_LENGTH)}
            priority = {"priority": PRIORITIES[incident.severity]}
            self._change(receiver, incident, "message", subject, method=HTTPMethod.PUT)
            self._change(receiver, incident, "priority", priority, method=HTTPMethod.PUT)
            if message.reopens:
                self._change(receiver, incident, "unacknowledge", {"source": CLIENT})

    def _change(
        self,
        receiver: Receiver,
        incident: Incident,
        action: str,
        body: Mapping[str, Any],
        *,
        method: HTTPMethod = HTTPMethod.POST,
    ) -> None:
        path = f"/{quote(incident.key, safe='')}/{action}?identifierType=alias"
        self._send(receiver, path, body, method=method)

    def _send(
        self,
        receiver: Receiver,
        path: str,
        body: Mapping[str, Any],
        *,
        method: HTTPMethod = HTTPMethod.POST,
    ) -> None:
        headers = {"Authorization": f"GenieKey {self._client.key_of(receiver)}"}
        self._client.send(receiver.target + PATH + path, body, method=method, headers=headers)


def _created(incident: Incident, message: Message) -> dict[str, Any]:
    first = incident.alerts[0]
    tags = [first.get("rule", ""), incident.severity.value, incident.source]
    return {
        "message": clipped(message.subject, MAX_MESSAGE_LENGTH),
        "alias": incident.key,
        "description": clipped(message.text, MAX_DESCRIPTION_LENGTH),
        "tags": [clipped(tag, MAX_TAG_LENGTH) for tag in dict.fromkeys(filter(None, tags))],
        "details": _details(incident),
        "entity": clipped(incident.source, MAX_ENTITY_LENGTH),
        "source": CLIENT,
        "priority": PRIORITIES[incident.severity],
    }


def _details(incident: Incident) -> dict[str, str]:
    """Return the rows of an incident and its links, as far as they fit."""
    rows, remaining = {}, MAX_DETAILS_LENGTH
    for name, text in [*incident.links, *incident.details.items()]:
        if len(name) < remaining:
            rows[name] = clipped(text, remaining - len(name))
            remaining -= len(name) + len(rows[name])
    return rows

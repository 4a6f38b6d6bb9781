"""The common part of PagerDuty and Opsgenie: incidents, and the sending of requests.

An *incident* is an alert or, where a route groups, a group of them: it is opened, updated and
resolved under one key. It ends when the last of its alerts has resolved.

Source: docs/decisions/0024-receivers.md.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPMethod, HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from alerting.models import Receiver
from alerting.notification.messages import LINK_NAMES, Message
from alerting.notification.receivers import signing_key
from alerting.notification.senders.notify import DeliveryError, delivered, retry_after_seconds
from alerting.notification.senders.webhooks import WebhookClient
from alerting.states import NOTICE, AlertState, Severity
from core.errors import UnavailableError
from core.secretbox import SecretBox

CLIENT = "Vedette"
MAX_LISTED = 20
# PagerDuty accepts events of 512 kB.
MAX_DETAIL_LENGTH = 2000
MAX_LINE_LENGTH = 300
MAX_ANSWER_BYTES = 4096
MAX_REASON_LENGTH = 300
_ACTIVE = (AlertState.FIRING.value, AlertState.NO_DATA.value)
# The same request would get these answers again; a refused key may be replaced.
_FINAL = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The content of a message about an incident.

    Attributes:
        key: stays the same from the first message to the last.
        is_active: whether one of its alerts fires or has no data.
        severity: the highest of its active alerts.
        alerts: payloads, those that have changed first; one for a notice, without a rule.
    """

    key: str
    is_active: bool
    severity: Severity
    alerts: list[dict[str, Any]]

    @property
    def source(self) -> str:
        """The appliance of its alerts if all are on one, else the tenant."""
        appliances = {alert.get("tags", {}).get("appliance", "") for alert in self.alerts}
        name = appliances.pop() if len(appliances) == 1 else ""
        return name or self.alerts[0].get("tenant") or CLIENT

    @property
    def links(self) -> list[tuple[str, str]]:
        """Names and URLs: those of its first alert."""
        first = self.alerts[0]
        if "link" in first:
            return [(first["link_name"], first["link"])]
        return [
            (name, first["links"][kind])
            for kind, name in LINK_NAMES.items()
            if kind in first["links"]
        ]

    @property
    def details(self) -> dict[str, str]:
        """Rows for its page, of its alerts."""
        if "rule" not in self.alerts[0]:
            return {"text": self.alerts[0].get("text", "")}
        if len(self.alerts) == 1:
            rows = _details_of(self.alerts[0])
            return {name: clipped(text, MAX_DETAIL_LENGTH) for name, text in rows.items()}
        listed = [f"{alert['severity']}: {_line_of(alert)}" for alert in self.alerts[:MAX_LISTED]]
        hidden = len(self.alerts) - len(listed)
        return {
            "rule": ", ".join(dict.fromkeys(alert["rule"] for alert in self.alerts[:MAX_LISTED])),
            "alerts": "\n".join(
                [
                    *(clipped(line, MAX_LINE_LENGTH) for line in listed),
                    *[f"{hidden} more"] * (hidden > 0),
                ]
            ),
        }


def incident_of(receiver: Receiver, message: Message) -> Incident:
    """Return what a message to a receiver is about."""
    payload = message.payload
    alerts = payload.get("alerts", [payload])
    if payload.get("kind") == NOTICE:
        key = _key(receiver, message.id)
        return Incident(key=key, is_active=True, severity=Severity.INFO, alerts=alerts)
    active = [alert for alert in alerts if alert["state"] in _ACTIVE]
    severities = [Severity(alert["severity"]) for alert in active or alerts]
    key = _key(receiver, message.group_key or alerts[0]["alert_id"])
    severity = max(severities, key=lambda severity: severity.rank)
    return Incident(key=key, is_active=bool(active), severity=severity, alerts=alerts)


def _key(receiver: Receiver, ident: str) -> str:
    # Groups of other receivers, and of other portals, have the same keys.
    return f"vedette-{receiver.id}-{ident}"


class PagingClient:
    """Sends JSON to a paging service.

    Args:
        name: of the service, for errors.
        client: checks addresses and limits the time, as for webhooks.
        box: decrypts the keys of receivers.
    """

    def __init__(self, name: str, client: WebhookClient, *, box: SecretBox) -> None:
        self._name = name
        self._client = client
        self._box = box

    def key_of(self, receiver: Receiver) -> str:
        """Return the receiver's key for the service."""
        try:
            return signing_key(receiver, self._box)
        except UnavailableError as error:
            raise DeliveryError(error.message) from error

    def send(
        self,
        url: str,
        body: Mapping[str, Any],
        *,
        method: HTTPMethod = HTTPMethod.POST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request; any answer but 202 is a failure."""
        sent = {"Content-Type": "application/json", "User-Agent": CLIENT.lower(), **(headers or {})}
        with delivered(f"{self._name} at {urlsplit(url).netloc}"):
            response, answer = self._client.request(
                method,
                url,
                body=json.dumps(body, ensure_ascii=False).encode(),
                headers=sent,
                max_answer_bytes=MAX_ANSWER_BYTES,
            )
        if response.status != HTTPStatus.ACCEPTED:
            raise DeliveryError(
                f"{self._name} responded {response.status} {response.reason}{_reason(answer)}",
                retry_after_seconds=retry_after_seconds(response),
                is_final=response.status in _FINAL,
            )


def clipped(text: str, length: int) -> str:
    """Return a text of at most a length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _details_of(alert: Mapping[str, Any]) -> dict[str, str]:
    rows = {
        "rule": alert["rule"],
        "state": alert["state"].replace("_", " "),
        "severity": alert["severity"],
        "value": alert["value_text"],
        "threshold": alert["threshold_text"],
        "summary": alert.get("annotation", ""),
        "expression": alert["expression"],
        "tenant": alert["tenant"],
        "started_at": alert["started_at"] or "",
    }
    return {**alert["tags"], **{name: text for name, text in rows.items() if text}}


def _line_of(alert: Mapping[str, Any]) -> str:
    where = " ".join(text for _, text in sorted(alert["tags"].items()))
    state = "" if alert["state"] == AlertState.FIRING else f" ({alert['state'].replace('_', ' ')})"
    return f"{alert['rule']} on {where}: {alert['value_text']}{state}"


def _reason(answer: bytes) -> str:
    """Return what a service says is wrong with a request, in one line."""
    try:
        data = json.loads(answer)
    except ValueError:
        return ""
    if not isinstance(data, dict):
        return ""
    errors = data.get("errors") or []
    texts = list(errors.values()) if isinstance(errors, dict) else errors
    reasons = [str(data.get("message") or ""), *map(str, texts if isinstance(texts, list) else [])]
    line = re.sub(r"\s+", " ", "; ".join(filter(None, reasons)))
    return f": {clipped(line, MAX_REASON_LENGTH)}" if line else ""

"""Notifications: the payload of an alert, and its message with subject, plain text and HTML."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from html import escape
from typing import Any

from alerting.language.annotations import render_annotation, value_text
from alerting.language.text import rule_expression
from alerting.machine import AlertView
from alerting.models import Rule
from alerting.notification.models import Notification, NotificationFile
from alerting.rule_request import rule_thresholds
from alerting.states import NOTICE, AlertState, Severity
from core.zones import SECONDS, instant_text
from tenants.models import is_rented_name
from timeseries.store import APPLIANCE_TAG

PAYLOAD_VERSION = 1
ACKNOWLEDGEMENT = "acknowledgement"
"""The `kind` of a payload that says that a user works on an alert, for paging services."""
MAX_SHOWN = 20
# Of a group, that go on: their payloads take a kilobyte each.
MAX_LISTED = 1_000
# The first of them that one of its alerts has is the state of a group.
_GROUP_STATES = [
    state.value for state in (AlertState.FIRING, AlertState.NO_DATA, AlertState.RESOLVED)
]
_SEVERITIES = ["", *(severity.value for severity in Severity)]

_COLORS = {
    "resolved": "#1a7f37",
    "critical": "#b42318",
    "warning": "#b54708",
    "info": "#175cd3",
    "no_data": "#475467",
}
LINK_NAMES = {
    "gpu": "GPU dashboard",
    "appliance": "Appliance dashboard",
    "alerts": "Alerts",
    "rule": "Rule",
    "runbook": "Runbook",
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send; its `id` is the same at every attempt, so that duplicates are detected.

    `zone` is the time zone of its text and its pictures; the payload is in UTC. `group_key` is that
    of its notifications. `reopens` is True if it must reach those who acknowledged the last one.
    """

    id: str
    created_at: datetime
    subject: str
    text: str
    html: str
    payload: dict[str, Any]
    file: NotificationFile | None = None
    zone: tzinfo = UTC
    group_key: str = ""
    reopens: bool = False


def alert_payload(
    rule: Rule,
    alert: AlertView,
    *,
    alert_id: str,
    tags: Mapping[str, str],
    state: AlertState,
    tenant: str,
    appliances: Mapping[str, str],
    public_url: str,
    now: datetime,
) -> dict[str, Any]:
    """Return the JSON that the outbox stores and webhooks receive; it is complete by itself.

    Args:
        alert: the alert after the transition.
        state: firing, resolved or no_data.
        appliances: names by id, which replace the ids in `tags`.
        public_url: the portal's address; without it there are no links.
    """
    appliance_id = tags.get(APPLIANCE_TAG, "")
    reached = [
        threshold
        for severity, threshold in rule_thresholds(rule)
        if severity.rank <= alert.severity.rank
    ]
    threshold = reached[-1] if reached and not rule.promql else None
    named = dict(tags)
    if appliance_id:
        named[APPLIANCE_TAG] = appliances.get(appliance_id, appliance_id)
    # A rented appliance has no dashboard.
    linked = {} if is_rented_name(named.get(APPLIANCE_TAG, "")) else tags
    payload = {
        "version": PAYLOAD_VERSION,
        "alert_id": alert_id,
        "rule_id": rule.id,
        "rule": rule.name,
        "pack_key": rule.pack_key,
        "expression": rule_expression(rule),
        "tenant": tenant,
        "state": state.value,
        "severity": alert.severity.value,
        "value": alert.value,
        "value_text": "no data" if alert.value is None else value_text(rule, alert.value),
        "threshold": threshold,
        "threshold_text": "" if threshold is None else value_text(rule, threshold),
        "comparison": rule.comparison.value,
        "tags": named,
        "appliance_id": appliance_id,
        "started_at": _timestamp(alert.active_since_at),
        "fired_at": _timestamp(alert.fired_at),
        "resolved_at": _timestamp(alert.resolved_at) if state is AlertState.RESOLVED else None,
        "late_at": _timestamp(alert.late_at),
        "at": _timestamp(now),
        "links": _links(rule, linked, public_url.rstrip("/")) if public_url else {},
    }
    values = {**payload, "labels": named} | ({"value": 0.0} if alert.value is None else {})
    return payload | {"annotation": render_annotation(rule.annotation, values)}


def render(notification: Notification, *, zone: tzinfo = UTC) -> Message:
    """Return the message of a notification, with times in a zone."""
    payload = notification.payload
    if payload.get("kind") == NOTICE:
        return _notice(notification)
    subject = _subject(payload)
    lead = payload.get("annotation") or ""
    rows = _rows(payload, zone)
    links = [
        (name, payload["links"][kind])
        for kind, name in LINK_NAMES.items()
        if kind in payload["links"]
    ]
    return Message(
        id=notification.id,
        created_at=notification.created_at,
        subject=subject,
        text=_text(subject, lead, rows, links),
        html=_html(subject, lead, rows, links, color=_color(payload)),
        payload=payload | {"id": notification.id, "subject": subject},
        zone=zone,
        group_key=notification.group_key,
    )


def render_group(
    notifications: Sequence[Notification],
    unchanged: Sequence[dict[str, Any]] = (),
    *,
    zone: tzinfo = UTC,
) -> Message:
    """Return one message about the whole state of a group.

    Args:
        notifications: about the alerts that have changed.
        unchanged: payloads of the group's other active alerts, as they were sent before.
        zone: the time zone of the text.
    """
    newest = {
        notification.about or notification.id: notification
        for notification in sorted(notifications, key=lambda notification: notification.id)
    }
    changed = [render(notification, zone=zone) for notification in newest.values()]
    payloads = [*(message.payload for message in changed), *unchanged]
    counts = Counter(str(payload.get("state", NOTICE)) for payload in payloads)
    states = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in counts.items())
    rules = list(dict.fromkeys(payload["rule"] for payload in payloads))
    rest = f" and {len(rules) - 1} more" if len(rules) > 1 else ""
    subject = " ".join(f"[{states.upper()}] {rules[0]}{rest}".split())
    shown = changed[:MAX_SHOWN]
    others = [_subject(payload) for payload in unchanged[: MAX_SHOWN - len(shown)]]
    hidden = len(payloads) - len(shown) - len(others)
    endings = ["Unchanged:\n" + "\n".join(others)] * bool(others)
    endings += [f"{hidden} more alerts are not shown."] * bool(hidden)
    return Message(
        id=notifications[0].id,
        created_at=changed[0].created_at,
        subject=subject,
        text="\n\n".join([*(message.text for message in shown), *endings]).rstrip("\n") + "\n",
        html="<hr>".join(
            [
                *(message.html for message in shown),
                *(escape(ending).replace("\n", "<br>") for ending in endings),
            ]
        ),
        payload={
            "version": PAYLOAD_VERSION,
            "kind": "group",
            "id": notifications[0].id,
            "subject": subject,
            "state": next((state for state in _GROUP_STATES if state in counts), NOTICE),
            "severity": max(
                (payload.get("severity", "") for payload in payloads), key=_SEVERITIES.index
            ),
            "alerts": payloads,
        },
        zone=zone,
        group_key=notifications[0].group_key,
    )


def _notice(notification: Notification) -> Message:
    payload: dict[str, str] = notification.payload
    # The name of a tenant may contain line breaks, which a header must not.
    subject = " ".join(payload["subject"].split())
    text, link, name = payload["text"], payload["link"], payload["link_name"]
    shown = escape(text).replace("\n", "<br>")
    return Message(
        id=notification.id,
        created_at=notification.created_at,
        subject=subject,
        text=f"{text}\n\n{name}: {link}\n",
        html=f'<p>{shown}</p><p><a href="{escape(link)}">{escape(name)}</a></p>',
        payload=payload | {"id": notification.id, "subject": subject},
        file=notification.file,
    )


def _subject(payload: dict[str, Any]) -> str:
    state = AlertState(payload["state"])
    label = (
        payload["severity"].upper() if state is AlertState.FIRING else _state_text(state).upper()
    )
    if state is AlertState.FIRING and payload.get("late_at"):
        label += ", LATE"
    where = _where(payload["tags"])
    value = f": {payload['value_text']}" if payload["value"] is not None else ""
    subject = f"[{label}] {payload['rule']}{f' on {where}' if where else ''}{value}"
    return " ".join(subject.split())


def _where(tags: dict[str, str]) -> str:
    appliance = tags.get("appliance", "")
    others = ", ".join(f"{tag} {text}" for tag, text in sorted(tags.items()) if tag != "appliance")
    return f"{appliance} ({others})" if appliance and others else appliance or others


def _rows(payload: dict[str, Any], zone: tzinfo) -> list[tuple[str, str]]:
    threshold = payload["threshold_text"]
    rows = [
        ("Rule", payload["rule"]),
        ("State", _state_text(AlertState(payload["state"]))),
        ("Severity", payload["severity"]),
        ("Value", payload["value_text"]),
        ("Threshold", f"{payload['comparison']} {threshold}" if threshold else ""),
        *((tag.capitalize(), text) for tag, text in sorted(payload["tags"].items())),
        ("Started at", _time_text(payload["started_at"], zone)),
        ("Resolved at", _time_text(payload["resolved_at"], zone)),
        ("Late", _late_text(payload, zone)),
        ("Flapping", _flapping_text(payload.get("firings_in_last_hour", 0))),
        ("Expression", payload["expression"]),
        ("Tenant", payload["tenant"]),
    ]
    return [(name, text) for name, text in rows if text]


def _time_text(timestamp: str | None, zone: tzinfo) -> str:
    return instant_text(datetime.fromisoformat(timestamp), zone, SECONDS) if timestamp else ""


def _late_text(payload: dict[str, Any], zone: tzinfo) -> str:
    if not payload.get("late_at"):
        return ""
    time = _time_text(payload["late_at"], zone)
    return f"the samples up to {time} arrived late, so the cause may be over"


def _flapping_text(firings: int) -> str:
    if not firings:
        return ""
    return f"fired {firings} times in an hour; changes are sent every 15 minutes at most"


def _state_text(state: AlertState) -> str:
    return state.value.replace("_", " ")


def _text(
    subject: str, lead: str, rows: list[tuple[str, str]], links: list[tuple[str, str]]
) -> str:
    width = max(len(name) for name, _ in rows) + 1
    lines = [subject, "", *([lead, ""] if lead else [])]
    lines += [f"{name + ':':<{width}} {text}" for name, text in rows]
    if links:
        lines += ["", *(f"{name}: {url}" for name, url in links)]
    return "\n".join(lines) + "\n"


def _html(
    subject: str,
    lead: str,
    rows: list[tuple[str, str]],
    links: list[tuple[str, str]],
    *,
    color: str,
) -> str:
    cells = "".join(
        f'<tr><th align="left" style="padding:2px 16px 2px 0;color:#475467">{escape(name)}</th>'
        f"<td>{escape(text)}</td></tr>"
        for name, text in rows
    )
    paragraph = f"<p>{escape(lead)}</p>" if lead else ""
    anchors = " · ".join(f'<a href="{escape(url)}">{escape(name)}</a>' for name, url in links)
    return (
        '<!doctype html><html><body style="font-family:sans-serif;font-size:14px">'
        f'<h2 style="font-size:18px;border-left:6px solid {color};padding-left:10px">'
        f"{escape(subject)}</h2>{paragraph}<table>{cells}</table><p>{anchors}</p></body></html>"
    )


def _color(payload: dict[str, Any]) -> str:
    is_firing = payload["state"] == AlertState.FIRING.value
    return _COLORS[payload["severity"] if is_firing else payload["state"]]


def _links(rule: Rule, tags: Mapping[str, str], base: str) -> dict[str, str]:
    links = {"alerts": f"{base}/alerts", "rule": f"{base}/rules/{rule.id}"}
    if rule.pack_key:
        links["runbook"] = f"{base}/runbooks/{rule.pack_key}"
    appliance_id, gpu = tags.get(APPLIANCE_TAG, ""), tags.get("gpu", "")
    if appliance_id:
        links["appliance"] = f"{base}/dashboards/appliances/{appliance_id}"
        if gpu.isdigit():
            links["gpu"] = f"{links['appliance']}/gpus/{gpu}"
    return links


def _timestamp(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")

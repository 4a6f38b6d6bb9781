"""Messages for people: subject, plain text and HTML of a payload."""

from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from alerting.models import Notification
from alerting.states import AlertState

_COLOURS = {
    "resolved": "#1a7f37",
    "critical": "#b42318",
    "warning": "#b54708",
    "no_data": "#475467",
}
_LINK_NAMES = {
    "gpu": "The GPU's dashboard",
    "appliance": "The appliance's dashboard",
    "alerts": "All alerts",
    "rule": "The rule",
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message ready to send; `id` is the same at every try, so that receivers see repeats."""

    id: str
    created_at: datetime
    subject: str
    text: str
    html: str
    payload: dict[str, Any]


def render(notification: Notification) -> Message:
    """Return the message of a row of the outbox."""
    payload = notification.payload
    if payload.get("kind") == "letter":
        return _letter(notification)
    subject = _subject(payload)
    rows = _rows(payload)
    links = [
        (name, payload["links"][kind]) for kind, name in _LINK_NAMES.items()
        if kind in payload["links"]
    ]  # fmt: skip
    return Message(
        id=notification.id,
        created_at=notification.created_at,
        subject=subject,
        text=_text(subject, rows, links),
        html=_html(subject, rows, links, colour=_colour(payload)),
        payload=payload | {"id": notification.id, "subject": subject},
    )


def _letter(notification: Notification) -> Message:
    payload: dict[str, str] = notification.payload
    # What people called a tenant may hold line breaks; a header must not.
    subject = " ".join(payload["subject"].split())
    text, link, name = payload["text"], payload["link"], payload["link_name"]
    return Message(
        id=notification.id,
        created_at=notification.created_at,
        subject=subject,
        text=f"{text}\n\n{name}: {link}\n",
        html=f'<p>{escape(text)}</p><p><a href="{escape(link)}">{escape(name)}</a></p>',
        payload=payload | {"id": notification.id, "subject": subject},
    )


def _subject(payload: dict[str, Any]) -> str:
    state = AlertState(payload["state"])
    label = (
        payload["severity"].upper() if state is AlertState.FIRING else _state_text(state).upper()
    )
    where = _where(payload["tags"])
    value = f": {payload['value_text']}" if payload["value"] is not None else ""
    subject = f"[{label}] {payload['rule']}{f' on {where}' if where else ''}{value}"
    return " ".join(subject.split())


def _where(tags: dict[str, str]) -> str:
    appliance = tags.get("appliance", "")
    others = ", ".join(f"{tag} {text}" for tag, text in sorted(tags.items()) if tag != "appliance")
    return f"{appliance} ({others})" if appliance and others else appliance or others


def _rows(payload: dict[str, Any]) -> list[tuple[str, str]]:
    threshold = payload["threshold_text"]
    rows = [
        ("Rule", payload["rule"]),
        ("State", _state_text(AlertState(payload["state"]))),
        ("Severity", payload["severity"]),
        ("Value", payload["value_text"]),
        ("Threshold", f"{payload['comparison']} {threshold}" if threshold else ""),
        *((tag.capitalize(), text) for tag, text in sorted(payload["tags"].items())),
        ("Started at", payload["started_at"] or ""),
        ("Resolved at", payload["resolved_at"] or ""),
        ("Expression", payload["expression"]),
        ("Tenant", payload["tenant"]),
    ]
    return [(name, text) for name, text in rows if text]


def _state_text(state: AlertState) -> str:
    return state.value.replace("_", " ")


def _text(subject: str, rows: list[tuple[str, str]], links: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows) + 1
    lines = [subject, "", *(f"{name + ':':<{width}} {text}" for name, text in rows)]
    if links:
        lines += ["", *(f"{name}: {url}" for name, url in links)]
    return "\n".join(lines) + "\n"


def _html(
    subject: str, rows: list[tuple[str, str]], links: list[tuple[str, str]], *, colour: str
) -> str:
    cells = "".join(
        f'<tr><th align="left" style="padding:2px 16px 2px 0;color:#475467">{escape(name)}</th>'
        f"<td>{escape(text)}</td></tr>"
        for name, text in rows
    )
    anchors = " · ".join(f'<a href="{escape(url)}">{escape(name)}</a>' for name, url in links)
    return (
        '<!doctype html><html><body style="font-family:sans-serif;font-size:14px">'
        f'<h2 style="font-size:18px;border-left:6px solid {colour};padding-left:10px">'
        f"{escape(subject)}</h2><table>{cells}</table><p>{anchors}</p></body></html>"
    )


def _colour(payload: dict[str, Any]) -> str:
    is_firing = payload["state"] == AlertState.FIRING.value
    return _COLOURS[payload["severity"] if is_firing else payload["state"]]

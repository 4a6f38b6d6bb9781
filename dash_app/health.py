"""How health looks on the dashboards: badges, lists of findings, the table of XIDs."""

from collections.abc import Sequence
from typing import Any

from dash import html

from core.clock import from_ns
from dash_app.components import badge, table
from dash_app.queries.health import XIDEvent
from jobqueue.executors.health import HealthFinding, HealthState
from jobqueue.executors.health_advice import advice_for
from jobqueue.executors.xids import XIDKind

Component = Any

MOST_XIDS = 50
TONES = {HealthState.DEGRADED: "warning", HealthState.FAILED: "danger"}
_XID_TONES = {XIDKind.FATAL: "danger", XIDKind.WARNING: "warning",
              XIDKind.APPLICATION: "secondary"}  # fmt: skip
_XID_WORDS = {XIDKind.FATAL: "fatal", XIDKind.WARNING: "warning",
              XIDKind.APPLICATION: "of the program"}  # fmt: skip


def health_badge(state: HealthState | None) -> Component | None:
    """Return the badge of a state that somebody should look at; none for the others."""
    return badge(state.value, tone=TONES[state]) if state in TONES else None


def findings_list(findings: Sequence[tuple[str, HealthFinding]]) -> Component:
    """Return findings, each with its place ("GPU 5"; "" where there is only one)."""
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(place, className="vdd-finding-place") if place else None,
                    html.Span(
                        badge(advice_for(finding.reason).name, tone=TONES[finding.state]),
                        className="vdd-finding-name",
                    ),
                    html.Div(
                        [
                            html.Div(finding.detail),
                            html.Div(advice_for(finding.reason).action, className="vdd-muted"),
                        ],
                        className="vdd-finding-text",
                    ),
                ]
            )
            for place, finding in findings
        ],
        className="vdd-findings",
    )


def xid_table(events: Sequence[XIDEvent], *, empty: str) -> Component:
    """Return the newest XIDs with their meaning."""
    return table(
        ("Time", "XID", "Kind", "Meaning", "What to do"),
        [
            [
                f"{from_ns(event.time_ns):%b %d %H:%M:%S}",
                f"{event.xid.code}" if event.count == 1 else f"{event.xid.code}, {event.count} x",
                badge(_XID_WORDS[event.xid.kind], tone=_XID_TONES[event.xid.kind]),
                f"{event.xid.title[0].upper()}{event.xid.title[1:]}",
                html.Span(event.xid.advice, className="vdd-wrap"),
            ]
            for event in list(reversed(events))[:MOST_XIDS]
        ],
        empty=empty,
    )

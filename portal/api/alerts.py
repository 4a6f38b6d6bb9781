"""`/alerts`: what the rules found, and how it went on."""

from typing import Any

from marshmallow import Schema, fields

from alerting.models import Alert
from alerting.service import ALERT_SORTS, alert_transitions, get_alert, list_alerts
from alerting.states import AlertState, Severity
from core.units import unit_of
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database

alerts = resource("Alerts", "/alerts", "What the rules found.")


class AlertSchema(Schema):
    """One series group of a rule that broke its threshold."""

    id = fields.String()
    rule_id = fields.String()
    rule_name = fields.String(attribute="rule.name")
    tenant_id = fields.String()
    tags = fields.Dict(keys=fields.String(), values=fields.String())
    state = fields.Enum(AlertState, by_value=True)
    severity = fields.Enum(Severity, by_value=True)
    value = fields.Float(allow_none=True)
    unit = fields.Function(lambda alert: unit_of(alert.rule.field).symbol)
    active_since_at = instant()
    fired_at = instant()
    resolved_at = instant()
    last_breach_at = instant()
    updated_at = instant()


class AlertQuery(PageQuery):
    """Which alerts."""

    state = fields.Enum(AlertState, by_value=True, load_default=None)
    rule_id = fields.String(load_default=None)
    sort = sort_field(ALERT_SORTS, default="")


class TransitionSchema(Schema):
    """A line of an alert's history."""

    id = fields.String()
    at = instant()
    from_state = fields.Enum(AlertState, by_value=True)
    to_state = fields.Enum(AlertState, by_value=True)
    severity = fields.Enum(Severity, by_value=True)
    value = fields.Float(allow_none=True)


@alerts.operation("GET", query=AlertQuery, answer=page_of(AlertSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List alerts, optionally of one state or rule."""
    state = query.pop("state")
    states = None if state is None else (state,)
    with database() as session:
        return envelope(list_alerts(session, current_scope(), states=states, **query))


@alerts.operation("GET", "/<alert_id>", answer=AlertSchema)
def show(alert_id: str) -> Alert:
    """Return an alert."""
    with database() as session:
        return get_alert(session, current_scope(), alert_id)


@alerts.operation(
    "GET", "/<alert_id>/transitions", query=PageQuery, answer=page_of(TransitionSchema)
)
def transitions(query: dict[str, Any], alert_id: str) -> dict[str, Any]:
    """Return an alert's history, newest first."""
    with database() as session:
        return envelope(alert_transitions(session, current_scope(), alert_id, **query))

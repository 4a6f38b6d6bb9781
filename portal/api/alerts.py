"""`/alerts`: firing and resolved alerts, and their state transitions."""

from collections.abc import Sequence
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from alerting.models import Alert
from alerting.notification.deliveries import flapping_alerts
from alerting.notification.silences import silences_by_alert
from alerting.rule_request import unit_field
from alerting.rules.actions import list_actions
from alerting.rules.history import NOTABLE, HistoryFilter, list_history
from alerting.rules.service import (
    ALERT_SORTS,
    acknowledge_alert,
    alert_transitions,
    get_alert,
    list_alerts,
)
from alerting.states import ActionKind, ActionState, AlertState, Severity
from core.quantities import unit_of
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import (
    PageQuery,
    about,
    envelope,
    instant,
    page_of,
    sort_field,
    time_filter,
    values_of,
)
from portal.context import current_scope, database, now
from tenants.permissions import Permission

alerts = APIBlueprint(
    "Alerts", "/alerts", "Alerts that rules raised.", changes=Permission.EDIT_ALERTS
)


class AlertSchema(Schema):
    """An alert: one series group of a rule that crossed its threshold."""

    id = fields.String()
    rule_id = fields.String()
    rule_name = fields.String()
    tenant_id = fields.String()
    tags = fields.Dict(keys=fields.String(), values=fields.String())
    state = fields.Enum(AlertState, by_value=True)
    severity = fields.Enum(Severity, by_value=True)
    value = fields.Float(allow_none=True)
    unit = fields.String()
    silence_ids = fields.List(fields.String(), **about("Active silences that match the alert."))
    is_flapping = fields.Boolean(**about("Whether it fired at least 4 times within an hour."))
    active_since_at = instant()
    fired_at = instant()
    resolved_at = instant()
    late_at = instant(**about("For late samples: the end of the last window that breached."))
    last_breach_at = instant()
    updated_at = instant()
    acknowledged_at = instant()
    acknowledged_by = fields.String(allow_none=True)


class AlertQuery(PageQuery):
    """Filters of the list."""

    state = fields.Enum(AlertState, by_value=True, load_default=None)
    rule_id = fields.String(load_default=None)
    severity = fields.Enum(Severity, by_value=True, load_default=None)
    appliance_id = fields.String(load_default=None)
    sort = sort_field(ALERT_SORTS, default="")


class TransitionSchema(Schema):
    """A state transition of an alert."""

    id = fields.String()
    at = instant()
    from_state = fields.Enum(AlertState, by_value=True)
    to_state = fields.Enum(AlertState, by_value=True)
    severity = fields.Enum(Severity, by_value=True)
    value = fields.Float(allow_none=True)


class AlertActionSchema(Schema):
    """An action of the rule because the alert fired, done or not."""

    id = fields.String()
    kind = fields.Enum(ActionKind, by_value=True)
    state = fields.Enum(ActionState, by_value=True)
    message = fields.String()
    created_at = instant()
    finished_at = instant()


class HistoryQuery(PageQuery):
    """Filters of the history."""

    to_state = fields.Enum(
        AlertState,
        by_value=True,
        load_default=None,
        **about("By default firing, resolved and no_data."),
    )
    rule_id = fields.String(load_default=None)
    severity = fields.Enum(Severity, by_value=True, load_default=None)
    appliance_id = fields.String(load_default=None)
    since = time_filter("Start, inclusive.")
    until = time_filter("End, exclusive.")


class HistoryEntrySchema(TransitionSchema):
    """A state transition with its alert."""

    alert_id = fields.String()
    rule_id = fields.String(attribute="alert.rule_id")
    rule_name = fields.String(attribute="alert.rule.name")
    tags = fields.Dict(keys=fields.String(), values=fields.String(), attribute="alert.tags")


@alerts.operation("GET", "/history", query=HistoryQuery, answer=page_of(HistoryEntrySchema))
def list_all_transitions(query: dict[str, Any]) -> dict[str, Any]:
    """List the state transitions of all alerts, newest first."""
    page, page_size = query.pop("page"), query.pop("page_size")
    to_state = query.pop("to_state")
    wanted = HistoryFilter(to_states=(to_state,) if to_state else NOTABLE, **query)
    with database() as session:
        history = list_history(session, current_scope(), wanted, page=page, page_size=page_size)
        return envelope(history)


def _shown(session: Session, alerts: Sequence[Alert]) -> list[dict[str, Any]]:
    silences = silences_by_alert(session, current_scope(), alerts, now=now())
    flapping = flapping_alerts(session, [alert.id for alert in alerts], now=now())
    return [
        values_of(
            AlertSchema,
            alert,
            rule_name=alert.rule.name,
            acknowledged_by=alert.acknowledger.email if alert.acknowledger else None,
            unit=unit_of(unit_field(alert.rule)).symbol,
            is_flapping=alert.id in flapping,
            silence_ids=[silence.id for silence in silences[alert.id]],
        )
        for alert in alerts
    ]


@alerts.operation("GET", query=AlertQuery, answer=page_of(AlertSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List alerts."""
    state = query.pop("state")
    states = None if state is None else (state,)
    with database() as session:
        page = list_alerts(session, current_scope(), states=states, **query)
        return envelope(page, _shown(session, page.items))


objects = Objects(alerts, "/<alert_id>", read=get_alert, answer=AlertSchema, shown=_shown)
objects.shows("Return an alert.")
objects.acts(
    "Note that you work on an alert: it is neither repeated nor escalated until it fires anew.",
    acknowledge_alert,
    "acknowledge",
)
objects.lists(
    "List the state transitions of an alert, newest first.",
    alert_transitions,
    query=PageQuery,
    path="/<alert_id>/transitions",
    answer=TransitionSchema,
    name="transitions",
)
objects.lists(
    "List what the rule did because the alert fired, newest first.",
    list_actions,
    query=PageQuery,
    path="/<alert_id>/actions",
    answer=AlertActionSchema,
    name="actions",
)

"""`/alerts`: alerts, their history, and the notifications about them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from flask import render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from alerting.evaluation.recorder import ACTIVE_STATES, view_of
from alerting.evaluation.rule_series import rule_of_group
from alerting.models import Alert, AlertAction, AlertTransition
from alerting.notification.deliveries import flapping_alerts
from alerting.notification.messages import alert_payload
from alerting.notification.receivers import list_notifications
from alerting.notification.silences import silences_by_alert
from alerting.notification.undelivered import redeliver
from alerting.rules.actions import list_actions
from alerting.rules.history import NOTABLE, HistoryFilter, list_history
from alerting.rules.service import (
    acknowledge_alert,
    alert_transitions,
    get_alert,
    list_alerts,
    list_rules,
)
from alerting.states import AlertState, Severity
from jobqueue.models import Attempt
from jobqueue.queue.service import attempts_between
from portal.context import current_scope, database, now, public_url
from portal.mail import charge_message
from portal.pages.common import Pages, changing
from portal.presenters.series import render_series
from portal.query_string import PAGE_SIZE, asked_page, chosen, day, page_number
from tenants.fleet.appliances import appliance_names
from tenants.tenants import tenant_names
from timeseries.store import APPLIANCE_TAG

pages = Pages("alerts", __name__)

MAX_GROUPED = 500
MAX_CHOICES = 500
MAX_JOBS = 20
MAX_NOTIFICATIONS = MAX_ACTIONS = 50
CHART_MARGIN = timedelta(minutes=30)
CHART_SPAN = timedelta(days=7)

VIEWS: dict[str, tuple[AlertState, ...] | None] = {
    "active": (AlertState.FIRING, AlertState.PENDING, AlertState.NO_DATA),
    "firing": (AlertState.FIRING,),
    "pending": (AlertState.PENDING,),
    "no_data": (AlertState.NO_DATA,),
    "resolved": (AlertState.RESOLVED,),
    "all": None,
}


@pages.get("/alerts")
def index() -> ResponseReturnValue:
    """List alerts; active ones by severity and appliance."""
    view = request.args.get("state", "active")
    view = view if view in VIEWS else "active"
    is_grouped = view == "active"
    number, size = (1, MAX_GROUPED) if is_grouped else (page_number(), PAGE_SIZE)
    scope = current_scope()
    with database() as session:
        names = appliance_names(session, scope.tenants)
        wanted = _filters(names)
        page = list_alerts(
            session, scope, states=VIEWS[view], page=number, page_size=size, **wanted
        )
        tenants = tenant_names(session, (alert.tenant_id for alert in page.items))
        silences = silences_by_alert(session, scope, page.items, now=now())
        flapping = flapping_alerts(session, [alert.id for alert in page.items], now=now())
        rules = _rules(session)
    query = {"page": number, "page_size": size} | {k: v for k, v in wanted.items() if v}
    return render_template(
        "alerts/index.html",
        page=page,
        groups=_grouped(page.items, names) if is_grouped else {},
        view=view,
        views=VIEWS,
        names=names,
        tenants=tenants,
        silences=silences,
        flapping=flapping,
        rules=rules,
        is_filtered=any(wanted.values()),
        live_query=urlencode(query),
    )


@pages.get("/alerts/history")
def history() -> ResponseReturnValue:
    """List when alerts fired, resolved and lost their data; the address has the filters."""
    scope = current_scope()
    to_state = chosen(AlertState, "to_state")
    with database() as session:
        names = appliance_names(session, scope.tenants)
        wanted = HistoryFilter(
            **_filters(names),
            to_states=(to_state,) if to_state else NOTABLE,
            since=day("since"),
            until=day("until", days=1),
        )
        page = list_history(session, scope, wanted, **asked_page())
        tenants = tenant_names(session, (transition.tenant_id for transition in page.items))
        rules = _rules(session)
    return render_template(
        "alerts/history.html",
        page=page,
        names=names,
        tenants=tenants,
        rules=rules,
        states=NOTABLE,
    )


@pages.get("/alerts/<alert_id>")
def show(alert_id: str) -> ResponseReturnValue:
    """Show an alert: its series, state, history, notifications, and the jobs that ran there."""
    scope = current_scope()
    with database() as session:
        alert = get_alert(session, scope, alert_id)
        page = alert_transitions(session, scope, alert_id, **asked_page())
        names = appliance_names(session, scope.tenants)
        payload = alert_payload(
            alert.rule,
            view_of(alert),
            alert_id=alert.id,
            tags=alert.tags,
            state=alert.state,
            tenant=tenant_names(session, [alert.tenant_id])[alert.tenant_id],
            appliances=names,
            public_url=public_url(),
            now=now(),
        )
        silences = silences_by_alert(session, scope, [alert], now=now())[alert.id]
        flapping = flapping_alerts(session, [alert.id], now=now())
        notifications = list_notifications(
            session, scope, alert_id=alert_id, page_size=MAX_NOTIFICATIONS
        )
        jobs = _jobs(session, alert)
        actions = (
            list_actions(session, scope, alert_id, page_size=MAX_ACTIONS).items
            if page.number == 1
            else []
        )
        timeline: list[tuple[datetime, AlertTransition | AlertAction]] = [
            *((action.created_at, action) for action in actions),
            *((transition.at, transition) for transition in page.items),
        ]
        timeline.sort(key=lambda entry: entry[0], reverse=True)
    return render_template(
        "alerts/show.html",
        alert=alert,
        annotation=payload["annotation"],
        page=page,
        timeline=[entry for _, entry in timeline],
        names=names,
        silences=silences,
        flapping=flapping,
        notifications=notifications,
        jobs=jobs,
        is_active=alert.state in ACTIVE_STATES,
    )


@pages.get("/alerts/<alert_id>/chart")
def chart(alert_id: str) -> ResponseReturnValue:
    """Draw the series of an alert with its thresholds and the time for which it fired."""
    scope = current_scope()
    with database() as session:
        alert = get_alert(session, scope, alert_id)
        names = appliance_names(session, scope.tenants)
        rule = rule_of_group(alert.rule, alert.tags)
    start, end = _period(alert)
    before = max(CHART_MARGIN, timedelta(seconds=12 * rule.window_seconds))
    fired = [] if alert.fired_at is None else [(alert.fired_at, end)]
    return render_series(
        rule,
        tenants=(alert.tenant_id,),
        names=names,
        start=max(start - before, end - CHART_SPAN),
        end=min(end + CHART_MARGIN, now()),
        firing=fired,
    )


pages.acts("/alerts/<alert_id>/acknowledge", acknowledge_alert, "Alert acknowledged", back=".show")


def _back_to_notifications() -> str:
    alert_id = request.form.get("alert_id")
    return url_for(".show", alert_id=alert_id) if alert_id else url_for("receivers.index")


@pages.post("/notifications/<notification_id>/redeliver")
@changing(back=_back_to_notifications)
def send_again(session: Session, notification_id: str) -> str:
    """Send a notification again."""
    redeliver(session, current_scope(), notification_id, now=now())
    charge_message(session)
    return "Notification queued to be sent again"


def _filters(names: Mapping[str, str]) -> dict[str, Any]:
    """Return the filters in the address; an appliance is given by its name or ID."""
    appliance = request.args.get("appliance", "").strip()
    ids = [ident for ident, name in names.items() if name == appliance]
    return {
        "rule_id": request.args.get("rule_id") or None,
        "severity": chosen(Severity, "severity"),
        "appliance_id": (ids[0] if ids else appliance) or None,
    }


def _rules(session: Session) -> list[tuple[str, str]]:
    """Return ID and name of the rules to filter by."""
    rules = list_rules(session, current_scope(), page=1, page_size=MAX_CHOICES)
    return [(rule.id, rule.name) for rule in rules.items]


def _grouped(
    alerts: Sequence[Alert], names: Mapping[str, str]
) -> dict[Severity, dict[str, list[Alert]]]:
    """Return alerts by severity and appliance, critical first; "" has those without one."""
    groups: dict[Severity, dict[str, list[Alert]]] = {}
    for severity in reversed(Severity):
        by_appliance: dict[str, list[Alert]] = {}
        for alert in alerts:
            if alert.severity is severity:
                by_appliance.setdefault(alert.tags.get(APPLIANCE_TAG, ""), []).append(alert)
        if by_appliance:
            by_name = sorted(by_appliance.items(), key=lambda pair: names.get(pair[0], pair[0]))
            groups[severity] = dict(by_name)
    return groups


def _period(alert: Alert) -> tuple[datetime, datetime]:
    """Return from when until when an alert was, or is, active."""
    start = alert.active_since_at or alert.fired_at or alert.updated_at
    is_over = alert.state not in ACTIVE_STATES and alert.resolved_at is not None
    return start, max(start, alert.resolved_at) if is_over and alert.resolved_at else now()


def _jobs(session: Session, alert: Alert) -> Sequence[Attempt]:
    """Return the attempts that ran on the alert's appliance while it was active."""
    appliance_id = alert.tags.get(APPLIANCE_TAG, "")
    if not appliance_id:
        return []
    start, end = _period(alert)
    attempts = attempts_between(
        session, current_scope(), appliance_id, start=start, end=end, limit=MAX_JOBS
    )
    own = alert.tags.get("job")
    return [attempt for attempt in attempts if own in {None, attempt.job_id}]

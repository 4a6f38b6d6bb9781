"""Alerts and silences as Alertmanager's API v2 has them, for amtool, Grafana and dashboards.

The label `alertname` is the rule; matchers of silences are translated likewise. Operators also see
the label `tenant`.

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation.recorder import view_of
from alerting.language.matchers import Matcher, parse_matcher
from alerting.models import Alert, Receiver, Silence
from alerting.notification.inhibition import current_inhibitions
from alerting.notification.labels import alert_labels, appliance_labels
from alerting.notification.messages import alert_payload
from alerting.notification.policies import policy_of, receivers_by_name
from alerting.notification.senders.alertmanager import posted_alert
from alerting.notification.silences import (
    SilenceRequest,
    create_silence,
    expire_silence,
    get_silence,
    silences_by_alert,
    state_of,
)
from alerting.rule_request import raise_errors
from alerting.states import AlertState
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import tenant_names

MAX_ALERTS = 10_000
# Alertmanager retains ended silences for this time.
RETENTION = timedelta(hours=120)
PLATFORM_RECEIVER = "platform"
_NAMES = {"alertname": "rule"}
_LABELS = {name: label for label, name in _NAMES.items()}


def export_alerts(
    session: Session,
    scope: Scope,
    *,
    filters: Sequence[str],
    receiver: str = "",
    now: datetime,
    public_url: str,
) -> list[dict[str, Any]]:
    """Return the firing alerts of the scope whose labels match all filters, newest first.

    Args:
        receiver: a pattern of which the name of one of the alert's receivers is a match.
    """
    scope.require(Permission.VIEW)
    matchers = _parsed(filters)
    of_receiver = _parsed([f"receiver=~{receiver}"] if receiver else [])
    states = (AlertState.FIRING, AlertState.NO_DATA)
    statement = scope.select(select(Alert).where(Alert.state.in_(states)), Alert)
    newest = statement.order_by(Alert.active_since_at.desc(), Alert.id).limit(MAX_ALERTS)
    alerts = session.scalars(newest).all()
    tenants = tenant_names(session, {alert.tenant_id for alert in alerts})
    names = appliance_names(session, scope.tenants)
    silences = silences_by_alert(session, scope, alerts, now=now)
    inhibitions = current_inhibitions(session, tenants)
    receivers = {tenant_id: _Receivers(session, tenant_id) for tenant_id in tenants}
    exported = []
    for alert in alerts:
        payload = alert_payload(
            alert.rule,
            view_of(alert),
            alert_id=alert.id,
            tags=alert.tags,
            state=alert.state,
            tenant=tenants[alert.tenant_id],
            appliances=names,
            public_url=public_url,
            now=now,
        )
        posted = posted_alert(payload, now=now)
        if scope.tenant_id is not None:
            del posted["labels"]["tenant"]
        named = receivers[alert.tenant_id].of(alert, names)
        is_wanted = all(matcher.matches(posted["labels"]) for matcher in matchers) and all(
            any(matcher.matches({"receiver": name}) for name in named) for matcher in of_receiver
        )
        if not is_wanted:
            continue
        silenced_by = [silence.id for silence in silences[alert.id]]
        inhibited_by = sorted(map(_fingerprint, inhibitions.of(alert.tenant_id, payload)))
        state = "suppressed" if silenced_by or inhibited_by else "active"
        exported.append(
            posted
            | {
                "updatedAt": alert.updated_at.isoformat(),
                "fingerprint": _fingerprint(alert.id),
                "receivers": [{"name": name} for name in named],
                "status": {
                    "state": state,
                    "silencedBy": silenced_by,
                    "inhibitedBy": inhibited_by,
                },
            }
        )
    return exported


def export_silences(
    session: Session, scope: Scope, *, filters: Sequence[str], now: datetime
) -> list[dict[str, Any]]:
    """Return the silences of the scope that have all matchers, also those that ended lately."""
    scope.require(Permission.VIEW)
    wanted = {(matcher.label, matcher.value) for matcher in _parsed(filters)}
    statement = select(Silence).where(Silence.ends_at > now - RETENTION).order_by(Silence.ends_at)
    silences = (
        exported_silence(silence, now=now)
        for silence in session.scalars(scope.select(statement, Silence))
    )
    return [
        silence
        for silence in silences
        if wanted <= {(matcher["name"], matcher["value"]) for matcher in silence["matchers"]}
    ]


def exported_silence(silence: Silence, *, now: datetime) -> dict[str, Any]:
    """Return a silence as Alertmanager shows it."""
    return {
        "id": silence.id,
        "status": {"state": state_of(silence, now=now).value},
        "updatedAt": silence.created_at.isoformat(),
        "comment": silence.comment,
        "createdBy": silence.creator.email if silence.creator else "",
        "startsAt": silence.starts_at.isoformat(),
        "endsAt": silence.ends_at.isoformat(),
        "matchers": [_exported_matcher(parse_matcher(text)) for text in silence.matchers],
    }


def import_silence(
    session: Session, scope: Scope, data: Mapping[str, Any], *, now: datetime
) -> Silence:
    """Add a silence; one with an ID replaces that one, which ends."""
    if data.get("id"):
        before = get_silence(session, scope, data["id"])
        if before.ends_at > now:
            expire_silence(session, scope, before.id, now=now)
    request = SilenceRequest(
        matchers=[_imported_matcher(matcher) for matcher in data["matchers"]],
        starts_at=max(data["startsAt"], now),
        ends_at=data["endsAt"],
        comment=data["comment"],
    )
    return create_silence(session, scope, request, now=now)


def receiver_names(session: Session, scope: Scope) -> list[str]:
    """Return the names of the scope's receivers."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Receiver.name).order_by(Receiver.name), Receiver)
    return list(dict.fromkeys(session.scalars(statement)))


class _Receivers:
    """Which receivers of a tenant get an alert."""

    def __init__(self, session: Session, tenant_id: str) -> None:
        self._names = {ident: name for name, ident in receivers_by_name(session, tenant_id).items()}
        self._policy = policy_of(session, tenant_id)
        self._labels = appliance_labels(session, {tenant_id: self._policy.used_labels()})

    def of(self, alert: Alert, appliances: Mapping[str, str]) -> list[str]:
        """Return the names of receivers of an alert."""
        if alert.rule.platform_rule_id is not None:
            return [PLATFORM_RECEIVER]
        own = [
            self._names[receiver_id]
            for receiver_id in alert.rule.receiver_ids
            if receiver_id in self._names
        ]
        labels = alert_labels(alert, appliances, self._labels)
        routed = [name for route in self._policy.matching(labels) for name in route.receivers]
        return list(dict.fromkeys([*own, *routed]))


def _fingerprint(alert_id: str) -> str:
    return hashlib.sha256(alert_id.encode()).hexdigest()[:16]


def _parsed(filters: Sequence[str]) -> list[Matcher]:
    try:
        return [parse_matcher(text) for text in filters]
    except ValueError as error:
        raise_errors("query", {"filter": [str(error)]})
        raise


def _exported_matcher(matcher: Matcher) -> dict[str, Any]:
    return {
        "name": _LABELS.get(matcher.label, matcher.label),
        "value": matcher.value,
        "isRegex": matcher.operator.endswith("~"),
        "isEqual": not matcher.operator.startswith("!"),
    }


def _imported_matcher(data: Mapping[str, Any]) -> str:
    operator = ("=" if data["isEqual"] else "!") + ("~" if data["isRegex"] else "")
    operator = "!=" if operator == "!" else operator
    return f"{_NAMES.get(data['name'], data['name'])}{operator}{data['value']}"

"""What a message says about an alert: the JSON that is stored in the outbox and sent to webhooks.

The payload carries all that a message needs, so that sending it later asks nobody anything.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from alerting.expression import rule_expression, value_text
from alerting.machine import AlertView
from alerting.models import Rule
from alerting.states import AlertState, Severity
from timeseries.store import APPLIANCE_TAG

PAYLOAD_VERSION = 1
_GPU_TAG = "gpu"


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
    """Return the payload of one message.

    Args:
        rule: the rule that speaks.
        alert: the alert after its move.
        alert_id: the alert's id.
        tags: the group's tags; the appliance's id is shown as its name.
        state: what the message tells: firing, resolved or no_data.
        tenant: the tenant's name.
        appliances: appliance id to name.
        public_url: where the portal is; without it the message has no links.
        now: when it happened.
    """
    appliance_id = tags.get(APPLIANCE_TAG, "")
    threshold = _threshold(rule, alert.severity)
    named = dict(tags)
    if appliance_id:
        named[APPLIANCE_TAG] = appliances.get(appliance_id, appliance_id)
    return {
        "version": PAYLOAD_VERSION,
        "alert_id": alert_id,
        "rule_id": rule.id,
        "rule": rule.name,
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
        "started_at": _text(alert.active_since_at),
        "fired_at": _text(alert.fired_at),
        "resolved_at": _text(alert.resolved_at) if state is AlertState.RESOLVED else None,
        "at": _text(now),
        "links": _links(rule, tags, public_url.rstrip("/")) if public_url else {},
    }


def _threshold(rule: Rule, severity: Severity) -> float | None:
    if severity is Severity.CRITICAL and rule.critical_threshold is not None:
        return rule.critical_threshold
    return rule.warning_threshold


def _links(rule: Rule, tags: Mapping[str, str], base: str) -> dict[str, str]:
    links = {"alerts": f"{base}/alerts", "rule": f"{base}/rules/{rule.id}"}
    appliance_id, gpu = tags.get(APPLIANCE_TAG, ""), tags.get(_GPU_TAG, "")
    if appliance_id:
        links["appliance"] = f"{base}/dashboards/appliances/{appliance_id}"
        if gpu.isdigit():
            links["gpu"] = f"{links['appliance']}/gpus/{gpu}"
    return links


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")

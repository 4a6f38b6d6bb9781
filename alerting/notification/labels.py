"""Labels of alerts, which matchers compare: of silences, routes and inhibition rules.

Labels are `rule`, `severity` and the tags of the alert; `appliance` is the appliance's name,
`appliance_id` its ID, and `label.rack` its label `rack`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert
from tenants.models import Appliance
from timeseries.store import APPLIANCE_TAG

LABEL_PREFIX = "label."
ApplianceLabels = Mapping[str, Mapping[str, str]]
"""The labels of appliances with their prefix, by ID."""
NO_LABELS: ApplianceLabels = {}


def labels_of(
    tags: Mapping[str, str],
    *,
    rule: str,
    severity: str,
    names: Mapping[str, str],
    labels: ApplianceLabels = NO_LABELS,
) -> dict[str, str]:
    """Return the labels of an alert; `names` are those of appliances by ID."""
    appliance_id = tags.get(APPLIANCE_TAG, "")
    named = {APPLIANCE_TAG: names.get(appliance_id, appliance_id)} if appliance_id else {}
    own = {"appliance_id": appliance_id, "rule": rule, "severity": severity}
    return {**tags, **named, **own, **labels.get(appliance_id, {})}


def alert_labels(
    alert: Alert, names: Mapping[str, str], labels: ApplianceLabels = NO_LABELS
) -> dict[str, str]:
    """Return the labels of an alert; `names` are those of appliances by ID."""
    severity = alert.severity.value
    return labels_of(
        alert.tags, rule=alert.rule.name, severity=severity, names=names, labels=labels
    )


def labels_of_payload(payload: Mapping[str, Any], labels: ApplianceLabels) -> dict[str, str]:
    """Return the labels of an alert of which a notification has the payload, which has names."""
    appliance_id = payload["appliance_id"]
    named = labels_of(payload["tags"], rule=payload["rule"], severity=payload["severity"], names={})
    return {**named, "appliance_id": appliance_id, **labels.get(appliance_id, {})}


def appliance_labels(session: Session, used: Mapping[str, Iterable[str]]) -> ApplianceLabels:
    """Return the labels of the appliances of tenants that use any.

    Args:
        used: the matchers, and the labels by name, that each tenant uses.
    """
    tenants = [
        tenant_id
        for tenant_id, texts in used.items()
        if any(text.lstrip().startswith(LABEL_PREFIX) for text in texts)
    ]
    if not tenants:
        return NO_LABELS
    rows = session.execute(
        select(Appliance.id, Appliance.labels).where(Appliance.tenant_id.in_(tenants))
    )
    return {ident: prefixed(labels) for ident, labels in rows}


def prefixed(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an appliance as matchers name them."""
    return {f"{LABEL_PREFIX}{key}": value for key, value in labels.items()}

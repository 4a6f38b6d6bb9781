"""Inhibition: a firing alert holds notifications about others whose cause it is.

As in Alertmanager, a rule has matchers of the alerts that inhibit (`source_matchers`), of those
that they inhibit (`target_matchers`), and labels of which both have the same values (`equal`). The
label `pack_key` names the rule of the pack that an alert is from. An alert never inhibits itself.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, true
from sqlalchemy.orm import Session

from alerting.language.matchers import MAX_MATCHERS, match_all, parse_matcher
from alerting.models import Alert, NotificationPolicy, Rule
from alerting.notification.labels import NO_LABELS, ApplianceLabels, appliance_labels, labels_of
from alerting.notification.models import Notification
from alerting.rule_request import Errors
from alerting.states import AlertState
from tenants.fleet.appliances import appliance_names

MAX_RULES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class InhibitRule:
    """Which alerts inhibit which others."""

    source_matchers: tuple[str, ...]
    target_matchers: tuple[str, ...]
    equal: tuple[str, ...] = ()


KEYS = tuple(rule_field.name for rule_field in fields(InhibitRule))
SHIPPED = (
    InhibitRule(
        source_matchers=("pack_key=appliance-down",),
        target_matchers=("pack_key!=appliance-down",),
        equal=("appliance_id",),
    ),
    # A lost GPU is the cause of its XIDs and of what other readings say, a fatal XID of the rest.
    InhibitRule(
        source_matchers=("pack_key=gpu-lost",),
        target_matchers=("pack_key=~(gpu|xid|nvlink|fabric)-.*", "pack_key!=gpu-lost"),
        equal=("appliance_id", "gpu"),
    ),
    InhibitRule(
        source_matchers=("pack_key=xid-fatal",),
        target_matchers=("pack_key=~(gpu|xid|nvlink|fabric)-.*", "pack_key!~gpu-lost|xid-fatal"),
        equal=("appliance_id", "gpu"),
    ),
    # Alerts of the appliance that count its broken GPUs have no tag `gpu`.
    *(
        InhibitRule(
            source_matchers=(f"pack_key={source}",),
            target_matchers=("pack_key=~gpu-missing|gpu-unhealthy", "gpu=", f"pack_key!={source}"),
            equal=("appliance_id",),
        )
        for source in ("gpu-lost", "xid-fatal", "gpu-missing")
    ),
    # Health checks repeat what the rules about single readings found.
    *(
        InhibitRule(
            source_matchers=(f"pack_key={source}",),
            target_matchers=("pack_key=gpu-unhealthy",),
            equal=("appliance_id", "gpu"),
        )
        for source in ("gpu-ecc-double-bit", "gpu-remap-failed", "gpu-sram-errors")
    ),
)
"""Those of a tenant that has saved none: the cause hides its effects."""


def parse_inhibit_rules(data: object) -> tuple[tuple[InhibitRule, ...], Errors]:
    """Return the rules of a list as YAML or JSON has it, and the errors by path."""
    if not isinstance(data, list) or len(data) > MAX_RULES:
        return (), {"inhibit_rules": [f"Expected a list of at most {MAX_RULES} rules."]}
    errors: Errors = {}
    rules = []
    for number, entry in enumerate(data):
        path = f"inhibit_rules.{number}"
        texts = _errors(entry)
        if texts:
            errors[path] = [f"{path}: {text}" for text in texts]
        else:
            rules.append(InhibitRule(**{key: tuple(value) for key, value in entry.items()}))
    return tuple(rules), errors


def inhibit_rules_of(policy: NotificationPolicy | None) -> tuple[InhibitRule, ...]:
    """Return the rules of a tenant's policy, or those that ship."""
    if policy is None or policy.inhibit_rules is None:
        return SHIPPED
    return tuple(
        InhibitRule(**{key: tuple(value) for key, value in entry.items()})
        for entry in policy.inhibit_rules
    )


def printed_rules(rules: Sequence[InhibitRule]) -> list[dict[str, Any]]:
    """Return rules as `parse_inhibit_rules` reads them."""
    return [{key: list(value) for key, value in asdict(rule).items() if value} for rule in rules]


@dataclass(frozen=True, slots=True)
class Inhibitions:
    """The inhibitions by the firing alerts of some tenants.

    `sources` has, for each rule of each tenant, the alerts that match it by the values of its
    `equal` labels.
    """

    sources: Mapping[str, Sequence[tuple[InhibitRule, Mapping[tuple[str, ...], set[str]]]]]
    appliances: ApplianceLabels = field(default_factory=dict)

    def is_inhibited(self, notification: Notification) -> bool:
        """Return whether another firing alert inhibits the one that a notification is about."""
        payload = notification.payload
        return "rule" in payload and bool(self.of(notification.tenant_id or "", payload))

    def of(self, tenant_id: str, payload: Mapping[str, Any]) -> set[str]:
        """Return the IDs of the firing alerts that inhibit another, given its payload."""
        labels = _labels(payload["tags"], payload, pack_key=payload.get("pack_key", ""))
        appliance_id = payload["appliance_id"]
        labels |= {"appliance_id": appliance_id, **self.appliances.get(appliance_id, {})}
        inhibiting: set[str] = set()
        for rule, alerts in self.sources.get(tenant_id, ()):
            sources = alerts.get(_values(rule, labels), set()) - {payload["alert_id"]}
            if sources and match_all(rule.target_matchers, labels):
                inhibiting |= sources
        return inhibiting


def current_inhibitions(session: Session, tenant_ids: Collection[str]) -> Inhibitions:
    """Return what inhibits the alerts of some tenants now."""
    rules = {
        tenant_id: inhibit_rules_of(session.get(NotificationPolicy, tenant_id))
        for tenant_id in tenant_ids
    }
    sources = [_can_be_source(rule) for tenant_rules in rules.values() for rule in tenant_rules]
    if not sources:
        return Inhibitions({})
    labels = appliance_labels(
        session, {tenant_id: _used(tenant_rules) for tenant_id, tenant_rules in rules.items()}
    )
    firing: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    names = appliance_names(session, tuple(tenant_ids))
    statement = (
        select(Alert.id, Alert.tenant_id, Alert.tags, Alert.severity, Rule.name, Rule.pack_key)
        .join(Rule, Rule.id == Alert.rule_id)
        .where(Alert.state == AlertState.FIRING, Alert.tenant_id.in_(tenant_ids), or_(*sources))
    )
    for ident, tenant_id, tags, severity, rule_name, pack_key in session.execute(statement):
        named = {"rule": rule_name, "severity": severity.value}
        firing.setdefault(tenant_id, []).append(
            (ident, _labels(tags, named, pack_key, names, labels))
        )
    return Inhibitions(
        {
            tenant_id: [(rule, _matching(rule, firing.get(tenant_id, []))) for rule in tenant_rules]
            for tenant_id, tenant_rules in rules.items()
        },
        labels,
    )


def _used(rules: Sequence[InhibitRule]) -> list[str]:
    """Return the matchers and labels of rules."""
    return [
        text
        for rule in rules
        for text in (*rule.source_matchers, *rule.target_matchers, *rule.equal)
    ]


def _can_be_source(rule: InhibitRule) -> ColumnElement[bool]:
    """Return a condition that all alerts meet that inhibit others: few of many that fire."""
    columns = {"pack_key": Rule.pack_key, "rule": Rule.name}
    matchers = [parse_matcher(text) for text in rule.source_matchers]
    return and_(
        true(),
        *(
            columns[matcher.label] == matcher.value
            for matcher in matchers
            if matcher.operator == "=" and matcher.label in columns
        ),
    )


def _matching(
    rule: InhibitRule, alerts: Sequence[tuple[str, Mapping[str, str]]]
) -> dict[tuple[str, ...], set[str]]:
    ids: dict[tuple[str, ...], set[str]] = {}
    for ident, labels in alerts:
        if match_all(rule.source_matchers, labels):
            ids.setdefault(_values(rule, labels), set()).add(ident)
    return ids


def _values(rule: InhibitRule, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(label, "") for label in rule.equal)


def _labels(
    tags: Mapping[str, str],
    named: Mapping[str, str],
    pack_key: str,
    names: Mapping[str, str] | None = None,
    labels: ApplianceLabels = NO_LABELS,
) -> dict[str, str]:
    rule, severity = named["rule"], named["severity"]
    all_labels = labels_of(tags, rule=rule, severity=severity, names=names or {}, labels=labels)
    return all_labels | {"pack_key": pack_key}


def _errors(data: object) -> list[str]:
    if not isinstance(data, dict):
        return [f"Expected the keys {', '.join(KEYS)}."]
    errors = [f"Unknown key {key!r}. Use {', '.join(KEYS)}." for key in data if key not in KEYS]
    for key in KEYS:
        value = data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            errors.append(f"{key} must be a list of texts.")
        elif len(value) > MAX_MATCHERS:
            errors.append(f"{key} has {len(value)} entries. The maximum is {MAX_MATCHERS}.")
        elif key != "equal":
            errors += _matcher_errors(key, value)
    return errors


def _matcher_errors(key: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return [f"{key} is missing. Give at least one matcher, such as severity=critical."]
    errors = []
    for text in texts:
        try:
            parse_matcher(text)
        except ValueError as error:
            errors.append(f"{key}: {error}")
    return errors

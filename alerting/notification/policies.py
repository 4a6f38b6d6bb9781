"""The notification policy of a tenant: read, replaced and previewed; and who is notified by it.

A rule's own receivers are notified at once; the policy adds the receivers of its routes. The tree
has the names of receivers, which an edited receiver changes here too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from alerting.models import NotificationPolicy, PlatformRule, Receiver, Rule
from alerting.notification.holds import muted_routes
from alerting.notification.inhibition import (
    SHIPPED,
    InhibitRule,
    inhibit_rules_of,
    parse_inhibit_rules,
    printed_rules,
)
from alerting.notification.labels import (
    NO_LABELS,
    ApplianceLabels,
    appliance_labels,
    labels_of,
    prefixed,
)
from alerting.notification.models import DeliveredAlert
from alerting.notification.routes import Route, loaded, parse_routes, stored
from alerting.notification.silences import release_held
from alerting.notification.time_intervals import parse_time_intervals, written_intervals
from alerting.rule_request import raise_errors
from alerting.states import Severity
from tenants.fleet.appliances import appliance_names
from tenants.fleet.liveness import operators
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG

OF_RULE = Route()
"""The route of a rule's own receivers: at once, and each alert by itself."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A receiver of an alert, with the route that leads there.

    `muted_until` is the end of the mute time that the route is in, or when it is looked at again.
    """

    receiver_id: str
    receiver_name: str
    route: Route
    muted_until: datetime | None = None


def read_policy(session: Session, scope: Scope) -> Route:
    """Return the root of the tenant's tree; an empty one until it is saved, and for operators."""
    scope.require(Permission.VIEW)
    return Route() if scope.tenant_id is None else policy_of(session, scope.tenant_id)


def read_inhibit_rules(session: Session, scope: Scope) -> tuple[InhibitRule, ...]:
    """Return the tenant's inhibition rules; those that ship until others are saved."""
    scope.require(Permission.VIEW)
    row = None if scope.tenant_id is None else session.get(NotificationPolicy, scope.tenant_id)
    return inhibit_rules_of(row)


def read_time_intervals(session: Session, scope: Scope) -> list[dict[str, Any]]:
    """Return the tenant's time intervals, as they were written."""
    scope.require(Permission.VIEW)
    row = None if scope.tenant_id is None else session.get(NotificationPolicy, scope.tenant_id)
    return [] if row is None else row.time_intervals or []


def save_policy(
    session: Session,
    scope: Scope,
    data: object,
    *,
    inhibit_rules: object = None,
    time_intervals: object = None,
    now: datetime,
) -> Route:
    """Replace the tenant's tree, its time intervals, and its inhibition rules.

    Without inhibition rules, it has those that ship. What is held is looked at again.

    Raises:
        InvalidInputError: with all errors by path, such as `route.routes.0.receivers`.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    written = [] if time_intervals is None else time_intervals
    intervals, interval_errors = parse_time_intervals(written)
    receivers = list(receivers_by_name(session, tenant_id))
    root, errors = parse_routes(data, receivers=receivers, time_intervals=intervals)
    errors |= interval_errors
    rules: list[dict[str, Any]] | None = None
    if inhibit_rules is not None:
        parsed, rule_errors = parse_inhibit_rules(inhibit_rules)
        rules = None if parsed == SHIPPED else printed_rules(parsed)
        errors |= rule_errors
    raise_errors("notification policy", errors)
    row = session.get(NotificationPolicy, tenant_id)
    if row is None:
        row = NotificationPolicy(tenant_id=tenant_id)
        session.add(row)
    row.root, row.inhibit_rules, row.updated_at = stored(root), rules, now
    row.time_intervals = written_intervals(cast("list[dict[str, Any]]", written)) or None
    release_held(session, tenant_id, now=now)
    session.flush()
    return root


def preview_policy(
    session: Session, scope: Scope, labels: Mapping[str, str], *, now: datetime
) -> list[Destination]:
    """Return where an alert with these labels would go by the saved policy, each receiver once.

    An alert of a named appliance has the labels of that appliance too.
    """
    scope.require(Permission.VIEW)
    if scope.tenant_id is None:
        return []
    tenant_id = scope.tenant_id
    receivers = receivers_by_name(session, tenant_id)
    same = select(Appliance).where(
        Appliance.tenant_id == tenant_id,
        or_(
            Appliance.name == labels.get(APPLIANCE_TAG), Appliance.id == labels.get("appliance_id")
        ),
    )
    appliance = session.scalars(same.order_by(Appliance.retired_at.is_not(None))).first()
    own = {}
    if appliance is not None:
        own = prefixed(appliance.labels) | {
            APPLIANCE_TAG: appliance.name,
            "appliance_id": appliance.id,
        }
    row = session.get(NotificationPolicy, tenant_id)
    muted = {} if row is None else muted_routes(row, now=now)
    destinations: dict[str, Destination] = {}
    for route in policy_of(session, tenant_id).matching({**own, **labels}):
        for name in route.receivers:
            # A receiver is notified if one of its routes is not muted.
            if name in receivers and (name not in destinations or destinations[name].muted_until):
                until = muted.get(route.path)
                destinations[name] = Destination(receivers[name], name, route, until)
    return list(destinations.values())


def policy_of(session: Session, tenant_id: str) -> Route:
    """Return the root of a tenant's tree."""
    row = session.get(NotificationPolicy, tenant_id)
    return Route() if row is None else loaded(row.root)


def rename_receiver(session: Session, tenant_id: str | None, *, before: str, after: str) -> None:
    """Replace a receiver's name in the policy, and in rules; "" removes it.

    One without a tenant is the platform's.
    """
    if tenant_id is None:
        for platform_rule in session.scalars(select(PlatformRule)):
            platform_rule.receivers = list(_renamed_names(platform_rule.receivers, before, after))
        return
    for rule in session.scalars(select(Rule).where(Rule.tenant_id == tenant_id)):
        renamed = [
            action | {"receiver": after} if action.get("receiver") == before else action
            for action in rule.actions
        ]
        rule.actions = [action for action in renamed if action.get("receiver") != ""]
    row = session.get(NotificationPolicy, tenant_id)
    if row is not None:
        row.root = stored(_renamed(loaded(row.root), before, after))


def _renamed(route: Route, before: str, after: str) -> Route:
    escalate_to = _renamed_names(route.escalate_to, before, after)
    return replace(
        route,
        receivers=_renamed_names(route.receivers, before, after),
        escalate_to=escalate_to,
        escalate_after_seconds=route.escalate_after_seconds if escalate_to else 0.0,
        routes=tuple(_renamed(child, before, after) for child in route.routes),
    )


def _renamed_names(names: Iterable[str], before: str, after: str) -> tuple[str, ...]:
    return tuple(filter(None, (after if name == before else name for name in names)))


def receivers_by_name(session: Session, tenant_id: str | None) -> dict[str, str]:
    """Return the ids of the tenant's receivers by name; None: the platform's."""
    statement = select(Receiver).where(Receiver.tenant_id == tenant_id)
    return {receiver.name: receiver.id for receiver in session.scalars(statement)}


@dataclass(frozen=True, slots=True)
class Recipient:
    """A receiver or an email address, and how it is notified of an alert.

    Attributes:
        receiver_id: the receiver; None for an address.
        address: the email address; "" for a receiver.
        route: the route that leads there.
        group_key: of the alert at this route.
    """

    receiver_id: str | None
    address: str = ""
    route: Route = OF_RULE
    group_key: str = ""

    @property
    def key(self) -> str:
        """The receiver's ID, or the address."""
        return self.receiver_id or self.address

    def staying(self, row: DeliveredAlert | None) -> "Recipient":
        """Return it with the group in which it was notified of the alert, if it was.

        A paging service has opened an incident for that group.
        """
        return self if row is None else replace(self, group_key=row.group_key)


@dataclass(slots=True)
class Routing:
    """Receivers and policy of one tenant, and the names of its appliances.

    Attributes:
        receivers: IDs of the tenant's receivers by name.
        policy: root of the tenant's routes.
        appliances: names of the tenant's appliances by ID.
        labels: labels of appliances, where a route uses any.
    """

    session: Session
    receivers: Mapping[str, str]
    policy: Route
    appliances: Mapping[str, str]
    labels: ApplianceLabels = field(default_factory=lambda: NO_LABELS)

    @classmethod
    def of(cls, session: Session, tenant_id: str) -> "Routing":
        """Read the routing of a tenant."""
        policy = policy_of(session, tenant_id)
        return cls(
            session,
            receivers_by_name(session, tenant_id),
            policy,
            appliance_names(session, (tenant_id,)),
            appliance_labels(session, {tenant_id: policy.used_labels()}),
        )

    def alert_labels(
        self, rule: Rule, tags: Mapping[str, str], severity: Severity
    ) -> dict[str, str]:
        """Return the labels of an alert of the tenant."""
        return labels_of(
            tags,
            rule=rule.name,
            severity=severity.value,
            names=self.appliances,
            labels=self.labels,
        )

    def recipients(
        self, rule: Rule, tags: Mapping[str, str], severity: Severity
    ) -> dict[str, Recipient]:
        """Return who is notified when an alert fires, by key."""
        if rule.platform_rule is not None:
            return self._of_platform(rule)
        own = [ident for ident in rule.receiver_ids if ident in self.receivers.values()]
        recipients = {ident: Recipient(ident) for ident in own}
        labels = self.alert_labels(rule, tags, severity)
        for route in self.policy.matching(labels):
            for name in route.receivers:
                if (ident := self.receivers.get(name)) is not None:
                    group_key = route.group_key(labels)
                    recipients.setdefault(ident, Recipient(ident, "", route, group_key))
        return recipients

    def _of_platform(self, rule: Rule) -> dict[str, Recipient]:
        """Return the receivers of a platform's rule; without any, the operators' addresses."""
        receivers = receivers_by_name(self.session, None)
        named = rule.platform_rule.receivers if rule.platform_rule is not None else ()
        recipients = [Recipient(receivers[name]) for name in named if name in receivers]
        if not recipients:
            recipients = [Recipient(None, user.email) for user in operators(self.session)]
        return {recipient.key: recipient for recipient in recipients}

"""Who is notified of an alert: by its rule, by its tenant's policy, or by the platform."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy.orm import Session

from alerting.models import Rule
from alerting.notification.labels import NO_LABELS, ApplianceLabels, appliance_labels, labels_of
from alerting.notification.models import DeliveredAlert
from alerting.notification.policies import policy_of, receivers_by_name
from alerting.notification.routes import Route
from alerting.states import Severity
from tenants.fleet.appliances import appliance_names
from tenants.fleet.liveness import operators

OF_RULE = Route()
"""The route of a rule's own receivers: at once, and each alert by itself."""


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

"""Tables of rules, alerts and receivers; those of notifications are in `notification_models`."""

from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit

from sqlalchemy import Computed, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from alerting.rule_request import FIELDS
from alerting.states import (
    PAGING_URLS,
    ActionKind,
    ActionState,
    AlertState,
    Comparison,
    NoDataPolicy,
    ReceiverKind,
    Region,
    Severity,
)
from core.db import Base, id_column
from tenants.models import User, enum_column
from tenants.models.audit import Audited
from tenants.models.columns import reference, tenant_column


class Receiver(Base):
    """The destination of notifications; one without a tenant is the platform's.

    `target` is an email address, or the URL of a webhook, an Alertmanager or a paging service; of a
    chat service only what may be shown. `secret` is encrypted: a webhook's signing key, a chat
    service's address, or the key for a paging service.
    """

    __tablename__ = "receivers"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="receiver",
        name="name",
        fields=("name", "kind", "sends_resolved", "topics"),
        # A URL may contain a key.
        secrets={"target": "target", "secret": "secret"},
        verbs={"secret": ("secret_changed", "secret_removed")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(100))
    kind: Mapped[ReceiverKind] = mapped_column(enum_column(ReceiverKind))
    target: Mapped[str] = mapped_column(String(500))
    secret: Mapped[str] = mapped_column(String(500), default="")
    sends_resolved: Mapped[bool] = mapped_column(default=True)
    """Whether it is notified that an alert has resolved."""
    topics: Mapped[list[str] | None]
    """Of a receiver of events: those of `EventTopic` that it gets."""
    events_after: Mapped[datetime | None]
    """Of a receiver of events: earlier ones are in the outbox."""
    created_at: Mapped[datetime]
    # The constraint above ignores rows without a tenant, and MariaDB has no partial indexes.
    platform_name: Mapped[str | None] = mapped_column(
        String(100),
        Computed("CASE WHEN tenant_id IS NULL THEN name END", persisted=False),
        index=True,
        unique=True,
        deferred=True,
    )

    @property
    def region(self) -> Region | None:
        """Of a paging service; None for others."""
        urls = {url: region for (kind, region), url in PAGING_URLS.items() if kind is self.kind}
        return urls.get(self.target)

    @property
    def shown_target(self) -> str:
        """The target without what may be a secret: of a URL all but scheme and host."""
        if self.kind in {ReceiverKind.EMAIL, ReceiverKind.CHAT}:
            return self.target
        url = urlsplit(self.target)
        host = url.netloc.rpartition("@")[2]
        return f"{url.scheme}://{host}/…" if url.path.strip("/") else f"{url.scheme}://{host}"


class Rule(Base):
    """A threshold on an aggregate of one field over a window, by series group.

    `avg(gpu.temperature_celsius) over 5m by appliance,gpu > 85`
    """

    __tablename__ = "rules"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="rule",
        name="name",
        fields=FIELDS,
        verbs={"is_enabled": ("switched_on", "switched_off"), "name": ("renamed", "renamed")},
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(100))
    measurement: Mapped[str] = mapped_column(String(100))
    field: Mapped[str] = mapped_column(String(100))
    promql: Mapped[str] = mapped_column(Text, default="")
    """An expression in PromQL, in place of measurement and field."""
    labels: Mapped[dict[str, str]] = mapped_column(default=dict)
    operator: Mapped[str] = mapped_column(String(1), default="")
    other_field: Mapped[str] = mapped_column(String(100), default="")
    aggregate: Mapped[str] = mapped_column(String(10))
    window_seconds: Mapped[float]
    ahead_seconds: Mapped[float] = mapped_column(default=0.0)
    group_by: Mapped[list[str]] = mapped_column(default=list)
    filters: Mapped[dict[str, Any]] = mapped_column(default=dict)
    matchers: Mapped[list[str]] = mapped_column(default=list)
    """More conditions on tags; see `alerting.language.matchers`."""
    compared_with: Mapped[str] = mapped_column(Text, default="")
    comparison: Mapped[Comparison] = mapped_column(enum_column(Comparison))
    info_threshold: Mapped[float | None]
    warning_threshold: Mapped[float | None]
    critical_threshold: Mapped[float | None]
    info_reset: Mapped[float | None]
    warning_reset: Mapped[float | None]
    critical_reset: Mapped[float | None]
    and_condition: Mapped[str] = mapped_column(Text, default="")
    """As text, like `compared_with`; see `alerting.language.text`."""
    for_seconds: Mapped[float] = mapped_column(default=0.0)
    keep_firing_seconds: Mapped[float] = mapped_column(default=0.0)
    no_data: Mapped[NoDataPolicy] = mapped_column(
        enum_column(NoDataPolicy), default=NoDataPolicy.KEEP
    )
    interval_seconds: Mapped[float] = mapped_column(default=0.0)
    is_enabled: Mapped[bool] = mapped_column(default=True)
    receiver_ids: Mapped[list[str]] = mapped_column(default=list)
    annotation: Mapped[str] = mapped_column(String(1000), default="")
    """A template; see `alerting.language.annotations`."""
    actions: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """As `alerting.language.checks` has them."""
    pack_key: Mapped[str] = mapped_column(String(60), default="")
    """Its rule in `alerting.rules.pack`."""
    platform_rule_id: Mapped[str | None] = reference("platform_rules.id", index=True)
    """The platform's rule that it is a copy of; only operators change it."""
    platform_rule: Mapped["PlatformRule | None"] = relationship()
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    created_at: Mapped[datetime]
    evaluated_at: Mapped[datetime | None]
    evaluation_error: Mapped[str] = mapped_column(Text, default="")
    query_seconds: Mapped[float] = mapped_column(default=0.0)
    series: Mapped[int] = mapped_column(default=0)
    """The series groups that it had values of."""
    skipped_evaluations: Mapped[int] = mapped_column(default=0)
    """How often it was due while the one before still ran."""
    skipped_at: Mapped[datetime | None]
    alerts: Mapped[list["Alert"]] = relationship(
        back_populates="rule", passive_deletes=True, cascade="all, delete-orphan"
    )


class PlatformRule(Base):
    """A rule that an operator wrote for several tenants; see `alerting.rules.platform_rules`."""

    __tablename__ = "platform_rules"
    audited: ClassVar = Audited(
        kind="platform_rule",
        name="name",
        fields=("name", "expression", "annotation", "tenant_ids", "receivers", "is_enabled"),
        verbs={"is_enabled": ("switched_on", "switched_off"), "name": ("renamed", "renamed")},
    )

    id: Mapped[str] = id_column()
    name: Mapped[str] = mapped_column(String(100), unique=True)
    expression: Mapped[str] = mapped_column(Text)
    annotation: Mapped[str] = mapped_column(String(1000), default="")
    tenant_ids: Mapped[list[str]] = mapped_column(default=list)
    receivers: Mapped[list[str]] = mapped_column(default=list)
    """Names of the platform's receivers."""
    is_enabled: Mapped[bool] = mapped_column(default=True)
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    created_at: Mapped[datetime]


class OfferedRule(Base):
    """A rule of the pack that a tenant got once, whether it still has it or not."""

    __tablename__ = "offered_rules"

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    key: Mapped[str] = mapped_column(String(60), primary_key=True)
    expression: Mapped[str] = mapped_column(Text, default="")
    """As the pack had it; a rule that still has it follows the pack."""
    annotation: Mapped[str] = mapped_column(String(1000), default="")


class Alert(Base):
    """One series group of a rule, since its first breach.

    `group_key` is a hash of its tags, because MySQL compares text without regard to case.
    """

    __tablename__ = "alerts"
    __table_args__ = (
        UniqueConstraint("rule_id", "group_key"),
        Index("ix_alerts_tenant_id_state", "tenant_id", "state"),
    )

    id: Mapped[str] = id_column()
    rule_id: Mapped[str] = reference("rules.id")
    tenant_id: Mapped[str] = reference("tenants.id")
    group_key: Mapped[str] = mapped_column(String(64))
    tags: Mapped[dict[str, str]] = mapped_column(default=dict)
    state: Mapped[AlertState] = mapped_column(enum_column(AlertState))
    severity: Mapped[Severity] = mapped_column(enum_column(Severity))
    value: Mapped[float | None]
    active_since_at: Mapped[datetime | None]
    fired_at: Mapped[datetime | None]
    resolved_at: Mapped[datetime | None]
    last_breach_at: Mapped[datetime | None]
    late_at: Mapped[datetime | None]
    """The end of the window for which it fired, where its samples came after its evaluation."""
    observed_at: Mapped[datetime]
    """When the group last had a value."""
    updated_at: Mapped[datetime]
    acknowledged_at: Mapped[datetime | None]
    """When a user said to work on it; it is neither repeated nor escalated until it fires anew."""
    acknowledged_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    acknowledger: Mapped[User | None] = relationship(lazy="joined")
    rule: Mapped[Rule] = relationship(back_populates="alerts", lazy="joined")


class AlertTransition(Base):
    """One transition in an alert's history."""

    __tablename__ = "alert_transitions"

    id: Mapped[str] = id_column()
    alert_id: Mapped[str] = reference("alerts.id", index=True)
    tenant_id: Mapped[str] = tenant_column()
    from_state: Mapped[AlertState] = mapped_column(enum_column(AlertState))
    to_state: Mapped[AlertState] = mapped_column(enum_column(AlertState))
    severity: Mapped[Severity] = mapped_column(enum_column(Severity))
    value: Mapped[float | None]
    at: Mapped[datetime]
    acknowledged_at: Mapped[datetime | None]
    """Of one to firing: when a user acknowledged the alert."""
    alert: Mapped[Alert] = relationship(viewonly=True)


class AlertAction(Base):
    """An action of a rule because an alert fired: at most once of a kind for each firing."""

    __tablename__ = "alert_actions"
    __table_args__ = (
        UniqueConstraint("alert_id", "kind", "fired_at"),
        Index("ix_alert_actions_state_due_at", "state", "due_at"),
        Index("ix_alert_actions_rule_id_kind_finished_at", "rule_id", "kind", "finished_at"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    rule_id: Mapped[str] = reference("rules.id")
    alert_id: Mapped[str] = reference("alerts.id")
    kind: Mapped[ActionKind] = mapped_column(enum_column(ActionKind))
    fired_at: Mapped[datetime]
    action: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """As the rule had it."""
    payload: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The alert, as notifications have it."""
    state: Mapped[ActionState] = mapped_column(enum_column(ActionState))
    message: Mapped[str] = mapped_column(Text, default="")
    due_at: Mapped[datetime]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class NotificationPolicy(Base):
    """A tenant's tree of routes; see `alerting.notification.routes`."""

    __tablename__ = "notification_policies"
    audited: ClassVar = Audited(
        kind="notification_policy",
        name="tenant_id",
        fields=("root", "inhibit_rules", "time_intervals"),
        created="changed",
    )

    tenant_id: Mapped[str] = reference("tenants.id", primary_key=True)
    root: Mapped[dict[str, Any]] = mapped_column(default=dict)
    inhibit_rules: Mapped[list[dict[str, Any]] | None]
    """None: those that ship; see `alerting.notification.inhibition`."""
    time_intervals: Mapped[list[dict[str, Any]] | None]
    """As `alerting.notification.time_intervals` reads them."""
    updated_at: Mapped[datetime]


class MaintenanceWindow(Base):
    """A silence that recurs; see `alerting.notification.maintenance_windows`."""

    __tablename__ = "maintenance_windows"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    audited: ClassVar = Audited(
        kind="maintenance_window",
        name="name",
        fields=("name", "matchers", "schedule", "time_zone", "duration_seconds"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    name: Mapped[str] = mapped_column(String(100))
    matchers: Mapped[list[str]] = mapped_column(default=list)
    schedule: Mapped[str] = mapped_column(String(200))
    time_zone: Mapped[str] = mapped_column(String(64))
    duration_seconds: Mapped[float]
    next_at: Mapped[datetime | None] = mapped_column(index=True)
    """The start of its last silence; None if its schedule is over."""
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    created_at: Mapped[datetime]


class Silence(Base):
    """A period in which notifications of matching alerts are not sent."""

    __tablename__ = "silences"
    __table_args__ = (
        Index("ix_silences_tenant_id_ends_at", "tenant_id", "ends_at"),
        UniqueConstraint("window_id", "starts_at"),
    )
    audited: ClassVar = Audited(
        kind="silence",
        name="title",
        fields=("matchers", "starts_at", "ends_at", "comment"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = reference("tenants.id")
    matchers: Mapped[list[str]] = mapped_column(default=list)
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime] = mapped_column(index=True)
    comment: Mapped[str] = mapped_column(Text, default="")
    window_id: Mapped[str | None] = reference("maintenance_windows.id", ondelete="SET NULL")
    """The maintenance window of which it is an occurrence."""
    created_by: Mapped[str | None] = reference("users.id", ondelete="SET NULL", index=True)
    created_at: Mapped[datetime]
    creator: Mapped[User | None] = relationship(lazy="joined")

    @property
    def title(self) -> str:
        """The matchers in one line."""
        return ", ".join(self.matchers)[:200]

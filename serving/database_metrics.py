"""Metrics that are read from the database when Prometheus asks: queues, outbox, rules, pool.

Every process reports the same of the shared tables: take the maximum over the processes.
"""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import QueuePool, func, select
from sqlalchemy.orm import Session

from alerting.models import Rule
from alerting.notification.models import Notification
from alerting.states import NotificationState
from backup.runs import backup_status
from core.clock import Clock
from core.db import SessionFactory, transaction
from core.errors import DatabaseUnavailableError
from jobqueue.models import Job
from jobqueue.states import JobState
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import AccessPoint, Appliance, ApplianceState, BackupState, Tenant, TenantState

# Scrapes of several Prometheus servers read the tables once.
CACHE_SECONDS = 5.0
Figures = list[tuple[str, str, str, Mapping[str, float]]]
"""Name, description and label of metrics, "" for none, with their values by the label's."""

_IN_SERVICE = in_service() & has_no_connector()
_ACTIVE = tuple(state for state in JobState if not state.is_final)


class DatabaseCollector(Collector):
    """Reads the figures; of a database that does not answer only that."""

    def __init__(
        self, sessions: SessionFactory, *, clock: Clock, backup_interval_seconds: float
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._backup_interval_seconds = backup_interval_seconds
        self._figures: Figures = []
        self._read_at = 0.0

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        pool = self._sessions.kw["bind"].pool
        if isinstance(pool, QueuePool):
            connections = {"used": pool.checkedout(), "idle": pool.checkedin()}
            yield _gauge(
                "vedette_database_connections", "Connections of the pool.", "state", connections
            )
            yield GaugeMetricFamily(
                "vedette_database_pool_size", "Most connections of the pool.", pool.size()
            )
        try:
            figures = self._read()
        except DatabaseUnavailableError:
            figures = []
        yield GaugeMetricFamily(
            "vedette_database_up", "Whether the database answers.", float(bool(figures))
        )
        for name, description, label, values in figures:
            yield _gauge(name, description, label, values)

    def _read(self) -> Figures:
        if time.monotonic() >= self._read_at + CACHE_SECONDS or not self._figures:
            with transaction(self._sessions) as session:
                now = self._clock()
                self._figures = _figures(session, now=now) + _relay_figures(session, now=now)
                if self._backup_interval_seconds:
                    self._figures += _backup_figures(
                        session, self._backup_interval_seconds, now=now
                    )
            self._read_at = time.monotonic()
        return self._figures


def database_registry(
    sessions: SessionFactory, *, clock: Clock, backup_interval_seconds: float = 0.0
) -> CollectorRegistry:
    """Return a registry of the database's metrics.

    Args:
        sessions: of the database.
        clock: returns the current time.
        backup_interval_seconds: the interval of backups; 0 if none are made.
    """
    registry = CollectorRegistry(auto_describe=False)
    collector = DatabaseCollector(
        sessions, clock=clock, backup_interval_seconds=backup_interval_seconds
    )
    registry.register(collector)
    return registry


def _gauge(
    name: str, description: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, description, labels=[label] if label else [])
    for value, number in values.items():
        family.add_metric([value] if label else [], number)
    return family


def _figures(session: Session, *, now: datetime) -> Figures:
    oldest_at = session.scalar(
        select(func.min(Job.submitted_at)).where(
            Job.state.in_((JobState.SUBMITTED, JobState.QUEUED))
        )
    )
    outbox, due_at = session.execute(
        select(func.count(), func.min(Notification.next_try_at)).where(
            Notification.state == NotificationState.WAITING
        )
    ).one()
    return [
        (
            "vedette_jobs",
            "Jobs that have not ended.",
            "state",
            _counts(session, Job.state, Job.state.in_(_ACTIVE), _ACTIVE),
        ),
        (
            "vedette_oldest_waiting_job_seconds",
            "Age of the job that has waited longest.",
            "",
            {"": _age_seconds(oldest_at, now)},
        ),
        (
            "vedette_appliances",
            "Appliances in service.",
            "state",
            _counts(session, Appliance.state, _IN_SERVICE, ApplianceState),
        ),
        ("vedette_outbox", "Notifications to deliver.", "", {"": float(outbox)}),
        (
            "vedette_outbox_lag_seconds",
            "Time since the notification was due that is overdue longest.",
            "",
            {"": _age_seconds(due_at, now)},
        ),
        (
            "vedette_rule_lag_seconds",
            "Time since the rule was due whose evaluation is overdue longest.",
            "",
            {"": _evaluation_lag(session, now=now)},
        ),
    ]


def _relay_figures(session: Session, *, now: datetime) -> Figures:
    """Return the figures of relays that have reported, by their names."""
    statement = select(AccessPoint).where(
        AccessPoint.secret_hash.is_not(None), AccessPoint.seen_at.is_not(None)
    )
    relays = {relay.name: relay for relay in session.scalars(statement)}
    label = "access_point"
    return [
        (
            "vedette_access_point_report_age_seconds",
            "Time since the last report of a relay.",
            label,
            {name: _age_seconds(relay.seen_at, now) for name, relay in relays.items()},
        ),
        (
            "vedette_access_point_agents",
            "Agents of a relay, as it reported.",
            label,
            {name: float(relay.agents) for name, relay in relays.items()},
        ),
        (
            "vedette_access_point_spool_ratio",
            "How full the spool of a relay is.",
            label,
            {
                name: relay.spool_bytes / max(1, relay.max_spool_bytes)
                for name, relay in relays.items()
            },
        ),
        (
            "vedette_access_point_spool_age_seconds",
            "Age of the oldest samples in the spool of a relay.",
            label,
            {name: _age_seconds(relay.oldest_spooled_at, now) for name, relay in relays.items()},
        ),
        (
            "vedette_access_point_refused_writes",
            "Writes that a relay has refused since its start, because its spool was full.",
            label,
            {name: float(relay.refused_writes) for name, relay in relays.items()},
        ),
        (
            "vedette_access_point_undeliverable_bytes",
            "Lines on the disk of a relay that the portal did not store.",
            label,
            {name: float(relay.undeliverable_bytes) for name, relay in relays.items()},
        ),
    ]


def _backup_figures(session: Session, interval_seconds: float, *, now: datetime) -> Figures:
    status = backup_status(session)
    last, good, verification = status.last, status.last_good, status.last_verification
    has_failed = last is not None and last.state is BackupState.FAILED
    is_bad = verification is not None and verification.state is BackupState.FAILED
    return [
        (
            "vedette_backup_age_seconds",
            "Age of the data in the last backup; before the first, time since it was tried.",
            "",
            {"": _age_seconds(status.since, now)},
        ),
        (
            "vedette_backup_interval_seconds",
            "Interval of backups, as set.",
            "",
            {"": interval_seconds},
        ),
        ("vedette_backup_failed", "1 if the last backup failed.", "", {"": float(has_failed)}),
        (
            "vedette_backup_bytes",
            "Size of the last backup, and how much of it was new.",
            "part",
            {
                "total": float(good.total_bytes) if good else 0.0,
                "added": float(good.added_bytes) if good else 0.0,
            },
        ),
        (
            "vedette_backup_verification_failed",
            "1 if the last verification of a backup failed.",
            "",
            {"": float(is_bad)},
        ),
    ]


def _counts(session: Session, column: Any, condition: Any, states: Any) -> dict[str, float]:  # noqa: ANN401 - SQLAlchemy's
    counts = {str(state): 0.0 for state in states}
    statement = select(column, func.count()).where(condition).group_by(column)
    for state, count in session.execute(statement):
        counts[str(state)] = float(count)
    return counts


def _age_seconds(instant: datetime | None, now: datetime) -> float:
    return 0.0 if instant is None else max(0.0, (now - instant).total_seconds())


def _evaluation_lag(session: Session, *, now: datetime) -> float:
    """Return by how many seconds the rule that waits longest is late."""
    statement = (
        select(Rule.interval_seconds, func.min(Rule.evaluated_at))
        .join(Tenant, Tenant.id == Rule.tenant_id)
        .where(
            Rule.is_enabled,
            Rule.evaluated_at.is_not(None),
            Tenant.state == TenantState.ACTIVE,
        )
        .group_by(Rule.interval_seconds)
    )
    return max(
        (
            max(0.0, _age_seconds(evaluated_at, now) - interval_seconds)
            for interval_seconds, evaluated_at in session.execute(statement)
        ),
        default=0.0,
    )

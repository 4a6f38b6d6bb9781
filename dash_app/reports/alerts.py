"""Report on alerts: how many fired, and how long until they were acknowledged and resolved."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any

from sqlalchemy import select

from alerting.models import Alert, AlertTransition, Rule
from alerting.states import AlertState, Severity
from dash_app.reports.report import Cell, Column, ReportBy, Unit
from dash_app.reports.source import Source, Table, largest_first
from timeseries.store import APPLIANCE_TAG


@dataclass(frozen=True, slots=True)
class _Firing:
    """An alert from when it fired until it ended; `resolve_seconds` is None while it fires."""

    begin: AlertTransition
    resolve_seconds: float | None

    @property
    def acknowledge_seconds(self) -> float | None:
        """The time until it was acknowledged; None if nobody did."""
        at = self.begin.acknowledged_at
        return None if at is None else (at - self.begin.at).total_seconds()


def alerts(source: Source) -> Table:
    """Return the alerts that began to fire in the period."""
    period = source.request.period
    statement: Any = (
        select(AlertTransition, Alert, Rule.name)
        .join(Alert, AlertTransition.alert_id == Alert.id)
        .join(Rule, Alert.rule_id == Rule.id)
        .where(AlertTransition.at >= period.since, AlertTransition.at < period.until)
    )
    scoped = source.scope.select(statement, AlertTransition)
    source.check_count(scoped)
    selected = source.selected
    groups: dict[str, list[_Firing]] = defaultdict(list)
    started: dict[str, tuple[str, AlertTransition]] = {}
    ordered = scoped.order_by(AlertTransition.at, AlertTransition.id)
    for transition, alert, rule in source.session.execute(ordered).unique():
        place = alert.tags.get(APPLIANCE_TAG, "")
        if selected is not None and place not in source.appliances:
            continue
        before = started.pop(alert.id, None)
        if before is not None:
            seconds = (transition.at - before[1].at).total_seconds()
            groups[before[0]].append(_Firing(before[1], seconds))
        if transition.to_state is AlertState.FIRING:
            by = source.request.by
            name = {ReportBy.RULE: rule, ReportBy.DAY: f"{transition.at:%Y-%m-%d}"}.get(by)
            if by is ReportBy.TENANT:
                name = source.tenant_names[alert.tenant_id]
            started[alert.id] = name or source.group_of(place), transition
    for name, transition in started.values():
        groups[name].append(_Firing(transition, None))
    columns = (
        Column("alerts", "Alerts"),
        Column("critical", "Critical"),
        Column("acknowledged", "Acknowledged"),
        Column("mean_acknowledge_seconds", "Mean time to acknowledge", Unit.SECONDS),
        Column("resolved", "Resolved"),
        Column("mean_resolve_seconds", "Mean time to resolve", Unit.SECONDS),
        Column("longest_resolve_seconds", "Longest", Unit.SECONDS),
        Column("firing_seconds", "Firing in total", Unit.SECONDS),
    )
    end = min(source.now, period.until)
    rows = [
        (name, *_figures(fired, end)) for name, fired in largest_first(groups, source.request.by)
    ]
    return Table(
        columns,
        rows,
        _figures([firing for fired in groups.values() for firing in fired], end),
        ("Alerts count by when they began to fire. The noisiest come first.",),
    )


def _figures(fired: Sequence[_Firing], end: datetime) -> list[Cell]:
    resolved = [firing.resolve_seconds for firing in fired if firing.resolve_seconds is not None]
    acknowledged = [
        firing.acknowledge_seconds for firing in fired if firing.acknowledge_seconds is not None
    ]
    still = [
        (end - firing.begin.at).total_seconds()
        for firing in fired
        if firing.resolve_seconds is None
    ]
    return [
        len(fired),
        sum(firing.begin.severity is Severity.CRITICAL for firing in fired),
        len(acknowledged),
        fmean(acknowledged) if acknowledged else None,
        len(resolved),
        fmean(resolved) if resolved else None,
        max(resolved, default=None),
        sum(resolved) + sum(still),
    ]

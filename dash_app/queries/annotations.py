"""Annotations of charts: health, XIDs, and thresholds of alert rules."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Rule
from alerting.rule_request import rule_thresholds
from core.quantities import format_value
from dash_app.charts import Chart, Event, Threshold
from dash_app.queries.telemetry import Telemetry, by_index
from protocol.health import ApplianceHealth, HealthFinding, HealthReason, advice_for
from protocol.xids import XID, XIDKind, xid
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Aggregate
from timeseries.successive import SUCCESSIVE

# More lines would hide the chart.
MAX_THRESHOLDS = 4
# Their results have the field's unit, unlike a sum's or a count's.
_COMPARABLE = frozenset(set(Aggregate) - SUCCESSIVE - {Aggregate.SUM, Aggregate.COUNT})
# Findings that only count those of the GPUs.
_SUMMARIES = frozenset({HealthReason.GPU_FAILED, HealthReason.GPU_DEGRADED})


@dataclass(frozen=True, slots=True, kw_only=True)
class XIDEvent:
    """XIDs with one code on one GPU within the step that starts at `time_ns`."""

    time_ns: int
    gpu: str
    xid: XID
    count: int


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds by measurement and field."""

    by_metric: Mapping[tuple[str, str], tuple[Threshold, ...]]

    def on(self, chart: Chart, measurement: str, *fields: str) -> Chart:
        """Return the chart with the thresholds of the fields that it shows."""
        thresholds = [
            threshold
            for name in fields
            for threshold in self.by_metric.get((measurement, name), ())
        ]
        return replace(chart, thresholds=tuple(thresholds[:MAX_THRESHOLDS]))


def own_findings(health: ApplianceHealth | None) -> list[HealthFinding]:
    """Return the findings about the appliance itself, without those of its GPUs."""
    return (
        [finding for finding in health.findings if finding.reason not in _SUMMARIES]
        if health
        else []
    )


def finding_names(findings: Iterable[HealthFinding]) -> str:
    """Return a few words for each finding."""
    return ", ".join(advice_for(finding.reason).name for finding in findings)


def xid_events(telemetry: Telemetry) -> tuple[XIDEvent, ...]:
    """Return the XIDs of the span, oldest first."""
    result = telemetry.over_time(
        "gpu_xid", ("events",), group_by=("gpu", "xid"), aggregate=Aggregate.SUM
    )
    events = [
        XIDEvent(
            time_ns=time_ns,
            gpu=series.tags.get("gpu", ""),
            xid=xid(int(series.tags["xid"])),
            count=int(count),
        )
        for series in result.series
        if series.tags.get("xid", "").isdecimal()
        for time_ns, count in zip(series.times_ns, series.values, strict=True)
    ]
    return tuple(
        sorted(events, key=lambda event: (event.time_ns, by_index(event.gpu), event.xid.code))
    )


def chart_events(events: Iterable[XIDEvent]) -> tuple[Event, ...]:
    """Return XIDs as events of a chart."""
    return tuple(
        Event(
            event.time_ns,
            f"XID {event.xid.code}",
            f"GPU {event.gpu}: XID {event.xid.code}, {event.xid.title}",
            event.xid.kind is XIDKind.FATAL,
        )
        for event in events
    )


def thresholds_of(
    session: Session, scope: Scope, appliance: Appliance, *, gpu: str = ""
) -> Thresholds:
    """Return the thresholds of enabled rules on this appliance, or on one of its GPUs.

    A rule with more filters, for example on one disk, is left out: it applies to a part of a chart.
    So is one with a second condition, or that compares with another window.
    """
    tags = {APPLIANCE_TAG: appliance.id} | ({"gpu": gpu} if gpu else {})
    statement = (
        select(Rule)
        .where(Rule.tenant_id == appliance.tenant_id, Rule.is_enabled)
        .order_by(Rule.name, Rule.id)
    )
    thresholds: dict[tuple[str, str], tuple[Threshold, ...]] = {}
    for rule in session.scalars(scope.select(statement, Rule)):
        is_whole = all(tags.get(tag) in values for tag, values in rule.filters.items())
        has_more = rule.operator or rule.compared_with or rule.and_condition or rule.matchers
        if rule.aggregate in _COMPARABLE and is_whole and not has_more:
            key = rule.measurement, rule.field
            thresholds[key] = (*thresholds.get(key, ()), *_thresholds(rule))
    return Thresholds(thresholds)


def _thresholds(rule: Rule) -> tuple[Threshold, ...]:
    return tuple(
        Threshold(
            value=threshold,
            label=f"{rule.name} {rule.comparison} {format_value(rule.field, threshold)}",
            severity=severity,
        )
        for severity, threshold in rule_thresholds(rule)
    )

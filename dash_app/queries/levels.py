"""Thresholds of alert rules, as levels across the charts of what the rules watch."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Rule
from core.units import format_value
from dash_app.charts import Chart, Level
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Aggregate

# More lines across one chart say nothing.
MOST_LEVELS = 4
# What these make of values is a value of the same kind; a count or a sum is not.
_COMPARABLE = frozenset(set(Aggregate) - {Aggregate.SUM, Aggregate.COUNT})


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one appliance, or of one of its GPUs, by what is measured."""

    by_vital_sign: Mapping[tuple[str, str], tuple[Level, ...]]

    def across(self, chart: Chart, measurement: str, *fields: str) -> Chart:
        """Return the chart with the levels of the fields that it draws."""
        found = [one for name in fields for one in self.by_vital_sign.get((measurement, name), ())]
        return chart.with_levels(found[:MOST_LEVELS])


def levels_of(session: Session, scope: Scope, appliance: Appliance, *, gpu: str = "") -> Levels:
    """Return the thresholds of the rules in force that watch this appliance, or this GPU of it.

    A rule that is narrowed further, say to one disk, is left out: its level holds for a part of
    what a chart draws.
    """
    subject = {APPLIANCE_TAG: appliance.id} | ({"gpu": gpu} if gpu else {})
    statement = (
        select(Rule)
        .where(Rule.tenant_id == appliance.tenant_id, Rule.is_enabled)
        .order_by(Rule.name, Rule.id)
    )
    found: dict[tuple[str, str], tuple[Level, ...]] = {}
    for rule in session.scalars(scope.select(statement, Rule)):
        if rule.aggregate in _COMPARABLE and _watches(rule, subject):
            key = rule.measurement, rule.field
            found[key] = (*found.get(key, ()), *_levels(rule))
    return Levels(found)


def _watches(rule: Rule, subject: Mapping[str, str]) -> bool:
    return all(subject.get(tag) in values for tag, values in rule.filters.items())


def _levels(rule: Rule) -> tuple[Level, ...]:
    return tuple(
        Level(
            value=threshold,
            label=f"{rule.name} {rule.comparison} {format_value(rule.field, threshold)}",
            is_bad=is_bad,
        )
        for threshold, is_bad in (
            (rule.warning_threshold, False),
            (rule.critical_threshold, True),
        )
        if threshold is not None
    )

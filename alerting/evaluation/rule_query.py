"""The store's query for a rule."""

from alerting.language.matchers import split_matcher
from alerting.models import Rule
from alerting.rule_request import ANY_VALUE, RuleRequest, group_tags
from alerting.states import FORECAST
from timeseries.store import Aggregate, RangeQuery


def rule_query(
    rule: Rule | RuleRequest,
    *,
    start_ns: int,
    end_ns: int,
    tenants: tuple[str, ...] | None,
    step_ns: int | None = None,
) -> RangeQuery:
    """Return the query for the fields of a rule; that of a forecast reads averages."""
    is_forecast = rule.aggregate == FORECAST
    matchers = map(split_matcher, rule.matchers)
    return RangeQuery(
        measurement=rule.measurement,
        fields=tuple(filter(None, (rule.field, rule.other_field))),
        start_ns=start_ns,
        end_ns=end_ns,
        aggregate=Aggregate.AVG if is_forecast else Aggregate(rule.aggregate),
        step_ns=step_ns,
        tenants=tenants,
        filters={
            tag: tuple(values) for tag, values in rule.filters.items() if ANY_VALUE not in values
        },
        matchers=tuple((matcher.label, matcher.operator, matcher.value) for matcher in matchers),
        group_by=group_tags(rule),
    )

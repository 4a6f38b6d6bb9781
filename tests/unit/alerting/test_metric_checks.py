"""Names and functions of rules are checked against the catalog and the tenant's samples."""

from dataclasses import replace

import pytest

from alerting.language.metric_checks import check_metric, declared_errors
from alerting.language.text import parse_expression
from alerting.models import Rule
from alerting.rule_request import FIELDS, RuleRequest
from core.clock import to_ns
from core.errors import InvalidInputError
from tests.cast import NOON, Cast, scope_of
from timeseries.points import Point
from timeseries.store import Store, write


def rule(text: str) -> RuleRequest:
    return replace(parse_expression(text), name="x")


def fill(store: Store, tenant: str) -> None:
    """Write a metric that the catalog does not have."""
    point = Point("queue", {"shard": "a"}, {"depth": 1.0, "state": "open"}, to_ns(NOON))
    assert write(store, [point], identity={"tenant": tenant}) == []


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("avg(gpu.power_watts) by gpus > 5", "group_by", "Did you mean 'gpu'?"),
        ('avg(gpu.power_watts{uid="x"}) > 5', "filters", "Did you mean 'uuid'?"),
        ("avg(gpu.power_wats) > 5", "field", "Did you mean 'power_watts'?"),
        ("avg(gpu.power_watts / gpu.power_limt_watts) > 5", "other_field", "power_limit_watts"),
        ("avg(gpus.power_watts) > 5", "measurement", "Did you mean 'gpu.power_watts'?"),
        ("increase(gpu.power_watts) > 5", "aggregate", "Did you mean 'change'?"),
        ("rate(gpu.pcie_replays + gpu.pcie_width) > 5", "aggregate", "'gpu.pcie_width'"),
        ("max(queue.dept) > 5", "field", "Did you mean 'depth'?"),
        ("max(queue.depth) by shards > 5", "group_by", "Did you mean 'shard'?"),
        ("max(queue.state) > 5", "aggregate", "Use count"),
        ("max(queues.depth) > 5", "measurement", "Did you mean 'queue.depth'?"),
        ('avg(gpu.power_watts{jobs!="x"}) > 5', "matchers", "Did you mean 'job'?"),
        ("avg(gpu.power_watts) / avg(gpu.pwer_watts) > 5", "compared_with", "'power_watts'?"),
        ("avg(gpu.power_watts) > 5 and rate(gpu.fan_percent) > 5", "and_condition", "'change'?"),
    ],
)
def test_what_a_metric_does_not_have_is_refused_with_a_suggestion(
    store: Store, cast: Cast, text: str, field: str, part: str
) -> None:
    fill(store, cast.acme.id)
    with pytest.raises(InvalidInputError) as caught:
        check_metric(store, scope_of(cast.alice), rule(text))
    assert caught.value.errors.keys() == {field}
    assert part in caught.value.errors[field][0]


@pytest.mark.parametrize(
    "text",
    [
        "increase(gpu.pcie_replays) by gpu > 5",
        "rate(queue.depth) by appliance, shard > 5",
        "avg(my_app.latency) by gpus > 5",
        'avg("my.app".latency) by region > 5',
    ],
)
def test_a_counter_and_a_metric_of_the_tenant_are_accepted(
    store: Store, cast: Cast, text: str
) -> None:
    fill(store, cast.acme.id)
    check_metric(store, scope_of(cast.alice), rule(text))


def test_a_suggestion_never_names_what_another_tenant_has(store: Store, cast: Cast) -> None:
    fill(store, cast.acme.id)
    check_metric(store, scope_of(cast.charlie), rule("max(queues.depth) > 5"))


def test_a_rule_that_was_saved_before_can_be_changed_elsewhere(store: Store, cast: Cast) -> None:
    request = rule("avg(gpu.power_watts) by gpus > 5")
    saved = Rule(**{name: getattr(request, name) for name in FIELDS})
    check_metric(store, scope_of(cast.alice), replace(request, warning_threshold=6.0), before=saved)


def test_without_samples_only_a_name_that_is_nearly_a_declared_one_is_wrong() -> None:
    assert declared_errors(parse_expression("avg(cpu.usage_percent) by host > 5")) == {}
    wrong = declared_errors(parse_expression("increase(cpu.usage_percnt) by applianc > 5"))
    assert wrong.keys() == {"field", "group_by"}
    assert declared_errors(parse_expression("rate(cpu.usage_percent) > 5")).keys() == {"aggregate"}

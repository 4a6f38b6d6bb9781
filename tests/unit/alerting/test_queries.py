"""The queries of a rule: arithmetic of two fields, and forecasts."""

from dataclasses import replace
from datetime import timedelta

import pytest

from alerting.evaluation.expression import preview_rule, read_groups
from alerting.language.text import parse_expression
from core.clock import to_ns
from core.errors import InvalidInputError
from tests.cast import NOON, Cast, scope_of
from timeseries.points import Point
from timeseries.store import Store, write

DISK = "(disk.used_bytes / disk.total_bytes) over 6h by mount"


def fill(store: Store, tenant: str, *, hours: float, per_hour: float, mount: str = "/") -> None:
    """Write the use of a disk of 1,000 bytes every 5 minutes: 500 at noon, growing evenly."""
    points = [
        Point(
            "disk",
            {"mount": mount},
            {"used_bytes": 500.0 - minutes / 60 * per_hour, "total_bytes": 1000.0},
            to_ns(NOON - timedelta(minutes=minutes)),
        )
        for minutes in range(5, int(hours * 60) + 1, 5)
    ]
    assert write(store, points, identity={"tenant": tenant, "appliance": "a1"}) == []


def values(store: Store, tenant: str, text: str) -> dict[str, float]:
    """Return the values of a rule at noon by mount."""
    rule = replace(parse_expression(text), name="x")
    return {
        group.tags["mount"]: group.value
        for group in read_groups(store, rule, tenants=(tenant,), now=NOON)
    }


def test_the_fields_of_a_rule_are_aggregated_and_then_combined(store: Store, cast: Cast) -> None:
    fill(store, cast.acme.id, hours=6, per_hour=0.0)
    for operator, expected in {"/": 0.5, "-": -500.0, "+": 1500.0, "*": 500_000.0}.items():
        text = f"max{DISK} > 1".replace("/ d", f"{operator} d")
        assert values(store, cast.acme.id, text) == {"/": pytest.approx(expected)}


def test_a_group_with_one_of_two_fields_or_a_divisor_of_0_has_no_value(
    store: Store, cast: Cast
) -> None:
    at_ns = to_ns(NOON - timedelta(minutes=1))
    points = [
        Point("disk", {"mount": "/a"}, {"used_bytes": 1.0}, at_ns),
        Point("disk", {"mount": "/b"}, {"used_bytes": 1.0, "total_bytes": 0.0}, at_ns),
        Point("disk", {"mount": "/c"}, {"used_bytes": 1.0, "total_bytes": 4.0}, at_ns),
    ]
    write(store, points, identity={"tenant": cast.acme.id, "appliance": "a1"})
    assert values(store, cast.acme.id, f"last{DISK} > 1") == {"/c": 0.25}


def test_a_forecast_continues_the_trend(store: Store, cast: Cast) -> None:
    fill(store, cast.acme.id, hours=6, per_hour=10.0, mount="/grows")
    fill(store, cast.acme.id, hours=6, per_hour=0.0, mount="/steady")
    # 500 at noon and 10 more an hour: 740 of 1,000 a day later.
    expected = {"/grows": pytest.approx(0.74, abs=0.001), "/steady": pytest.approx(0.5)}
    assert values(store, cast.acme.id, f"forecast{DISK} ahead 1d > 0.95") == expected


def test_a_forecast_needs_half_of_its_window(store: Store, cast: Cast) -> None:
    fill(store, cast.acme.id, hours=2, per_hour=100.0)
    assert values(store, cast.acme.id, f"forecast{DISK} ahead 1d > 0.95") == {}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("forecast(gpu.power_watts) over 1h > 5", "ahead_seconds"),
        ("avg(gpu.power_watts) ahead 1h > 5", "ahead_seconds"),
    ],
)
def test_only_a_forecast_looks_ahead(store: Store, cast: Cast, text: str, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        preview_rule(store, scope_of(cast.bob), parse_expression(text), now=NOON)
    assert set(caught.value.errors) == {field}

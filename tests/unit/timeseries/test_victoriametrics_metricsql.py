import pytest

from timeseries.store import Aggregate
from timeseries.victoriametrics.metricsql import (
    Rollup,
    group_of,
    identifier,
    joined,
    literal,
    selector,
)


def test_a_selector_names_scope_measurement_and_tags() -> None:
    text = selector(
        "vedette", measurement="gpu", tenants=("acme",), filters={"gpu": ("0",), "job": ("", "j")}
    )

    assert text == ('{vedette_scope="vedette/acme",vedette_measurement="gpu",gpu="0",job=~"|j"}')


def test_several_values_are_alternatives_that_match_only_themselves() -> None:
    text = selector("v", tenants=("a",), filters={"model": ("H100 (80GB)", "x|y.*")})

    assert text is not None
    assert text.endswith('model=~"H100\\x5cx20\\x5cx2880GB\\x5cx29|x\\x5cx7cy\\x5cx2e\\x5cx2a"}')


def test_every_tenant_is_every_scope_of_the_database() -> None:
    assert selector("v", tenants=None) == '{vedette_scope=~"v\\x5cx2f.*"}'


@pytest.mark.parametrize(
    ("tenants", "filters"),
    [((), {}), (("",), {}), (("a",), {"gpu": ()}), (("a",), {"vedette_scope": ("v/b",)})],
)
def test_what_nothing_can_match_has_no_selector(
    tenants: tuple[str, ...], filters: dict[str, tuple[str, ...]]
) -> None:
    assert selector("v", tenants=tenants, filters=filters) is None


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain_1", '"plain_1"'),
        ('"} or {a="', '"\\x22} or {a=\\x22"'),
        ("a\\b\nc\x00", '"a\\x5cb\\x0ac\\x00"'),
        ("温度", '"温度"'),
    ],
)
def test_a_literal_cannot_end_early(text: str, escaped: str) -> None:
    assert literal(text) == escaped


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("gpu", "gpu"), ("1a", "\\x31a"), ("a) or b", "a\\x29\\x20or\\x20b"), ("ü", "\\xc3\\xbc")],
)
def test_an_identifier_is_nothing_but_a_name(name: str, escaped: str) -> None:
    assert identifier(name) == escaped


def test_names_of_our_own_labels_are_no_tags() -> None:
    rollup = Rollup("gpu", "x", window_ms=1, group_by=("__name__", "gpu", "vedette_scope"))

    assert rollup.aggregate(Aggregate.SUM).endswith(") by (gpu)")
    metric = {"__name__": "gpu_x", "gpu": "0", "vedette_scope": "v/a"}
    assert group_of(metric, ("__name__", "gpu", "rack")) == ("", "0", "")


def test_a_window_ends_before_its_time_of_evaluation() -> None:
    rollup = Rollup("gpu", "x", window_ms=60_000, group_by=())

    # Three days into the future of an evaluation three days in the past, less 1 ms.
    assert rollup.aggregate(Aggregate.MAX) == (
        'max(max_over_time({__name__="gpu_x"}[60000ms] offset -259199999ms)) by ()'
    )


def test_joined_expressions_carry_their_positions() -> None:
    assert joined(["a", "b"]) == (
        'union(label_set(a, "vedette_expression", "0"), label_set(b, "vedette_expression", "1"))'
    )

"""Files with many rules cost few statements, so that nobody waits for them."""

from collections.abc import Sequence

import pytest
from sqlalchemy import Engine

from alerting.rule_request import RuleEntry
from alerting.rules.files import apply_rules, check_metrics, parse_entries, plan_rules
from core.db import SessionFactory
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.statements import counted_statements
from timeseries.store import Store

MOST_STATEMENTS = 12


def entries(count: int, annotation: str) -> list[RuleEntry]:
    expression = "avg(gpu.temperature_celsius) over 5m by appliance > {}"
    return [
        RuleEntry(name=f"rule {n}", expression=expression.format(n + 1), annotation=annotation)
        for n in range(count)
    ]


def apply(sessions: SessionFactory, cast: Cast, file: Sequence[RuleEntry]) -> list[str]:
    """Apply a file as alice; return what it did to each rule."""
    with sessions.begin() as session:
        changes = plan_rules(
            session, scope_of(cast.alice), parse_entries(file), deletes_others=False
        )
        apply_rules(session, scope_of(cast.alice), changes, now=NOON)
    return sorted({change.action.value for change in changes})


@pytest.mark.parametrize("count", [3, 100])
def test_a_file_is_applied_with_as_many_statements_whatever_its_length(
    engine: Engine, sessions: SessionFactory, cast: Cast, count: int
) -> None:
    for annotation, actions in (("one", ["create"]), ("other", ["update"]), ("other", ["keep"])):
        with counted_statements(engine) as texts:
            assert apply(sessions, cast, entries(count, annotation)) == actions
        assert len(texts) <= MOST_STATEMENTS, texts


def test_the_store_is_asked_for_a_measurement_once(
    sessions: SessionFactory, cast: Cast, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sessions.begin() as session:
        changes = plan_rules(
            session,
            scope_of(cast.alice),
            parse_entries(entries(20, "one")),
            deletes_others=False,
        )
    asked: list[str] = []
    read = store.fields

    def fields(measurement: str, *, tenants: tuple[str, ...] | None) -> object:
        asked.append(measurement)
        return read(measurement, tenants=tenants)

    monkeypatch.setattr(store, "fields", fields)
    check_metrics(store, scope_of(cast.alice), changes)
    assert asked == ["gpu"]

"""The rule pack: valid rules about metrics that exist, offered once to each tenant."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import delete, select

from alerting.evaluation.rule_series import request_of
from alerting.language.annotations import render_annotation
from alerting.language.checks import rule_errors
from alerting.language.metric_checks import declared_errors
from alerting.language.text import parse_expression, rule_expression
from alerting.models import OfferedRule, Rule
from alerting.rule_request import EXPRESSED
from alerting.rules.pack import offer_rules, rule_pack
from alerting.rules.service import change_rule
from alerting.rules.unit_tests import run_test
from core.db import SessionFactory, transaction
from core.quantities import parse_duration
from tests.cast import NOON, Cast

TESTS = yaml.safe_load(Path(__file__).with_name("rule_pack_tests.yaml").read_text("utf-8"))
METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"


def documented_fields() -> dict[str, set[str]]:
    """Return the documented fields by measurement."""
    documented: dict[str, set[str]] = {}
    of_gpu = False
    for line in METRICS.read_text().splitlines():
        of_gpu = of_gpu or line.startswith("Fields of `gpu`")
        of_gpu = of_gpu and not line.startswith("#")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            measurement = "gpu" if of_gpu else cells[0].strip("`")
            documented.setdefault(measurement, set()).update(re.findall(r"\w+", cells[-1]))
    return documented


def test_every_rule_of_the_pack_is_valid_and_about_documented_metrics() -> None:
    documented = documented_fields()
    for pack_rule in rule_pack().values():
        rule = pack_rule.request
        assert rule_errors(rule) == {}, pack_rule.key
        assert {rule.field, rule.other_field} - {""} <= documented[rule.measurement], pack_rule.key
        assert parse_expression(rule_expression(rule)).field == rule.field
        assert pack_rule.source.startswith("https://"), pack_rule.key
        assert pack_rule.meaning, pack_rule.key
        assert pack_rule.steps, pack_rule.key
        assert len(pack_rule.key) <= Rule.pack_key.type.length, pack_rule.key
        values = {"value": 1.0, "value_text": "1", "labels": {"appliance": "gpu-01"}}
        assert "Error" not in render_annotation(pack_rule.annotation, values), pack_rule.key


def test_a_tenant_gets_each_rule_once(sessions: SessionFactory, cast: Cast) -> None:
    with transaction(sessions) as session:
        assert offer_rules(session, now=NOON) == 2 * len(rule_pack())
        session.execute(
            delete(Rule).where(Rule.tenant_id == cast.acme.id, Rule.pack_key == "gpu-hot")
        )
    with transaction(sessions) as session:
        assert offer_rules(session, now=NOON + timedelta(minutes=1)) == 0
        left = session.scalars(select(Rule.pack_key).where(Rule.tenant_id == cast.acme.id)).all()
    assert set(left) == rule_pack().keys() - {"gpu-hot"}


@pytest.mark.parametrize("test", TESTS["tests"], ids=lambda test: test["name"])
def test_each_rule_fires_when_it_should_and_not_at_what_is_usual(test: Mapping[str, Any]) -> None:
    interval = 2 * parse_duration(test.get("interval", TESTS["evaluation_interval"]))
    rules = {
        pack_rule.name: replace(
            pack_rule.request, interval_seconds=max(pack_rule.request.interval_seconds, interval)
        )
        for pack_rule in rule_pack().values()
    }
    assert list(run_test(test, rules, evaluation_interval=interval)) == []


def test_each_rule_of_the_pack_has_a_test() -> None:
    firing = {
        case["alertname"]
        for test in TESTS["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert firing == {pack_rule.name for pack_rule in rule_pack().values()}


def test_no_rule_of_the_pack_is_about_a_name_that_does_not_exist() -> None:
    for pack_rule in rule_pack().values():
        assert declared_errors(pack_rule.request) == {}, pack_rule.key


def test_rules_as_they_were_offered_follow_the_pack(sessions: SessionFactory, cast: Cast) -> None:
    """A tenant's changes stay, and so does an old text that it restores later."""
    old = "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85 °C"
    own = "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 70 °C"
    with transaction(sessions) as session:
        offer_rules(session, now=NOON)
        for tenant, expression in ((cast.acme.id, old), (cast.globex.id, own)):
            of_tenant = {"tenant_id": tenant, "key": "gpu-hot"}
            offer = session.get_one(OfferedRule, of_tenant)
            offer.expression, offer.annotation = old, "It is hot."
            rule = session.scalars(
                select(Rule).where(Rule.tenant_id == tenant, Rule.pack_key == "gpu-hot")
            ).one()
            rule.annotation = "It is hot."
            rule.receiver_ids = ["r1"]
            change_rule(
                session,
                rule,
                replace(
                    request_of(rule),
                    **{name: getattr(parse_expression(expression), name) for name in EXPRESSED},
                ),
                now=NOON,
            )

    def texts() -> dict[str, tuple[str, str, list[str]]]:
        with transaction(sessions) as session:
            rules = session.scalars(select(Rule).where(Rule.pack_key == "gpu-hot"))
            return {
                rule.tenant_id: (rule_expression(rule), rule.annotation, rule.receiver_ids)
                for rule in rules
            }

    pack_rule = rule_pack()["gpu-hot"]
    current = rule_expression(pack_rule.request)
    with transaction(sessions) as session:
        offer_rules(session, now=NOON)
    assert texts() == {
        cast.acme.id: (current, pack_rule.annotation, ["r1"]),
        cast.globex.id: (own, pack_rule.annotation, ["r1"]),
    }
    with transaction(sessions) as session:
        rule = session.scalars(
            select(Rule).where(Rule.tenant_id == cast.acme.id, Rule.pack_key == "gpu-hot")
        ).one()
        change_rule(session, rule, replace(parse_expression(old), name=rule.name), now=NOON)
        offer_rules(session, now=NOON)
    assert texts()[cast.acme.id][0] == old

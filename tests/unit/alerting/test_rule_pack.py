"""The rule pack: valid rules about metrics that exist, offered once to each tenant."""

import re
from datetime import timedelta
from pathlib import Path

from sqlalchemy import delete, select

from alerting.annotations import render_annotation
from alerting.models import Rule
from alerting.rule_checks import rule_errors
from alerting.rule_pack import offer_rules, rule_pack
from alerting.rule_text import parse_expression, rule_expression
from core.db import SessionFactory, transaction
from tests.cast import NOON, Cast

METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"


def documented_fields() -> dict[str, set[str]]:
    """Return the documented fields by measurement."""
    found: dict[str, set[str]] = {}
    of_gpu = False
    for line in METRICS.read_text().splitlines():
        of_gpu = of_gpu or line.startswith("Fields of `gpu`")
        of_gpu = of_gpu and not line.startswith("#")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            measurement = "gpu" if of_gpu else cells[0].strip("`")
            found.setdefault(measurement, set()).update(re.findall(r"\w+", cells[-1]))
    return found


def test_every_rule_of_the_pack_is_valid_and_about_documented_metrics() -> None:
    documented = documented_fields()
    for one in rule_pack().values():
        rule = one.request
        assert rule_errors(rule) == {}, one.key
        assert {rule.field, rule.other_field} - {""} <= documented[rule.measurement], one.key
        assert parse_expression(rule_expression(rule)).field == rule.field
        assert one.source.startswith("https://"), one.key
        assert one.meaning, one.key
        assert one.steps, one.key
        assert len(one.key) <= Rule.pack_key.type.length, one.key
        values = {"value": 1.0, "value_text": "1", "labels": {"appliance": "gpu-01"}}
        assert "Error" not in render_annotation(one.annotation, values), one.key


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

"""Rules, dashboard and documents about the portal itself name metrics that there are."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY
from promql_parser import VectorSelector

from cli.server import server
from core import redis_broker
from core.db import SessionFactory
from serving.database_metrics import DatabaseCollector
from tests.cast import FrozenClock
from tests.servers import require_program
from timeseries.declared import DECLARED
from timeseries.prometheus_names import metric_name
from timeseries.promql.evaluation import matchers_of
from timeseries.promql.syntax import nodes, parse

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "vedette-rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "vedette-portal.json"
FLEET = ROOT / "deploy" / "grafana" / "vedette-fleet.json"
DOCUMENT = ROOT / "docs" / "monitoring.md"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
_METRIC = re.compile(r"\bvedette_[a-z_]+")
_SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture
def metrics(sessions: SessionFactory, clock: FrozenClock) -> set[str]:
    """The names of all metrics, as queries write them."""
    # Importing them declares theirs.
    assert server
    assert redis_broker
    database = DatabaseCollector(sessions, clock=clock, backup_interval_seconds=3600.0)
    families = [*REGISTRY.collect(), *database.collect()]
    names = {
        f"{family.name}{ {'counter': '_total', 'info': '_info'}.get(family.type, '') }"
        for family in families
    }
    return {name for name in names if name.startswith("vedette_")}


def named_in(text: str) -> set[str]:
    """Return the metrics that a text names; those of histograms without their suffixes."""
    names = set(_METRIC.findall(text))
    for suffix in _SUFFIXES:
        names = {name.removesuffix(suffix) for name in names}
    return names


def test_every_metric_is_documented(metrics: set[str]) -> None:
    rows = [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| `ved")]
    assert {row.split("`")[1] for row in rows} == metrics


def test_rules_dashboard_and_runbooks_use_metrics_that_exist(metrics: set[str]) -> None:
    queries = [panel["targets"] for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]]
    for text in (json.dumps(queries), RULES.read_text("utf-8"), RUNBOOKS.read_text("utf-8")):
        assert named_in(text) <= metrics


def test_the_fleet_s_dashboard_asks_for_declared_metrics_and_their_tags() -> None:
    tags_of = {
        metric_name(measurement, field): {"appliance", *declaration.tags}
        for measurement, declaration in DECLARED.items()
        for field in declaration.fields
    }
    panels = json.loads(FLEET.read_text("utf-8"))["panels"]
    for target in (target for panel in panels for target in panel["targets"]):
        tree = parse(target["expr"].replace("$appliance", ".*"))
        selectors = [node for node in nodes(tree) if isinstance(node, VectorSelector)]
        assert selectors
        for selector in selectors:
            labels = {label for label, _, _ in matchers_of(selector)} - {"__name__"}
            labels |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels <= tags_of[selector.name or ""], target


def test_every_alert_has_a_runbook() -> None:
    rules = yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]
    headings = re.findall(r"^## (Vedette\w+)$", RUNBOOKS.read_text("utf-8"), re.MULTILINE)
    assert [rule["alert"] for rule in rules] == headings
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_prometheus_accepts_the_rules_and_they_fire_as_their_tests_say() -> None:
    promtool = require_program("promtool", package="prometheus")
    path = RULES.with_name("vedette-rules-test.yml")
    tested = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    promtool = require_program("promtool", package="prometheus")
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    filled = [query.replace("$__rate_interval", "1m") for query in queries]
    rules = [{"record": "checked", "expr": query} for query in filled]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), "utf-8")
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint=none", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{len(queries)} rules found" in checked.stdout, checked.stdout + checked.stderr

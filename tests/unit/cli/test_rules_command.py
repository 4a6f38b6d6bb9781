"""`vedette rules` and `vedette silence` against a real portal."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.orm import Session

from alerting.notification.receivers import create_receiver
from alerting.states import ReceiverKind
from core.db import SessionFactory
from tenants.users.tokens import create_api_token
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.conftest import Fill
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.portal.world import make_world

Vedette = Callable[..., Result]
HOT = "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85 °C"
FULL = "min(disk.free_bytes) over 2m by appliance, mount < 8 GiB, critical < 2 GiB for 10m"


def _with_world(session: Session, cast: Cast) -> str:
    make_world(session, cast, now=NOON)  # has the rule `GPU too hot`
    return ""


@pytest.fixture
def vedette(prefill: Callable[[Fill], str], environ_of: EnvironOf, cast: Cast) -> Vedette:
    """Runs commands as Bob, or with another token."""
    prefill(_with_world)
    bobs = environ_of(cast.bob)
    return lambda *arguments, command="rules", stdin="", token=bobs["VEDETTE_TOKEN"]: run_vedette(
        command, *arguments, environ=bobs | {"VEDETTE_TOKEN": token}, stdin=stdin
    )


def rules_file(folder: Path, *entries: Mapping[str, object]) -> str:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"rules": list(entries)}), encoding="utf-8")
    return str(path)


def test_a_file_is_compared_applied_and_exported(vedette: Vedette, tmp_path: Path) -> None:
    file = rules_file(
        tmp_path,
        {"name": "GPU too hot", "expression": "avg(gpu.temperature_celsius) by gpu > 85"},
        {
            "name": "Disk full",
            "expression": FULL,
            "receivers": ["On call"],
            "annotation": "{{ labels.mount }} is full",
        },
    )
    compared = vedette("diff", "-f", file)
    assert compared.returncode == 1
    assert f"+  expression: {FULL}\n" in compared.stdout
    assert HOT not in compared.stdout
    planned = vedette("apply", "--dry-run", "-f", file)
    assert planned.stdout == "keep    GPU too hot\ncreate  Disk full\n"
    assert vedette("ls", "-o", "name").stdout == "GPU too hot\n"

    assert vedette("apply", "-f", file).stdout == planned.stdout
    assert vedette("diff", "-f", file).returncode == 0
    assert vedette("apply", "-f", file).stdout == "keep    GPU too hot\nkeep    Disk full\n"
    exported = vedette("export").stdout
    assert yaml.safe_load(exported)["rules"] == [
        {
            "name": "Disk full",
            "expression": FULL,
            "receivers": ["On call"],
            "is_enabled": True,
            "annotation": "{{ labels.mount }} is full",
        },
        {"name": "GPU too hot", "expression": HOT, "receivers": [], "is_enabled": True},
    ]
    assert vedette("diff", "-f", "-", stdin=exported).returncode == 0

    acting = {"name": "Disk full", "expression": FULL, "actions": [{"kind": "drain"}]}
    assert (
        "may not add or change appliances"
        in vedette("apply", "-f", rules_file(tmp_path, acting)).stderr
    )
    assert "+  actions:" in vedette("diff", "-f", rules_file(tmp_path, acting)).stdout
    changed = rules_file(tmp_path, {"name": "Disk full", "expression": FULL, "is_enabled": False})
    assert vedette("apply", "-f", changed, "--prune").stdout == (
        "update  Disk full\ndelete  GPU too hot\n"
    )
    assert vedette("ls").stdout.splitlines()[1:] == [f"Disk full  no       {FULL}"]


def test_all_errors_are_reported_and_nothing_is_applied(vedette: Vedette, tmp_path: Path) -> None:
    file = rules_file(
        tmp_path,
        {"name": "Good", "expression": FULL},
        {"name": "Typo", "expression": "avg(gpu.x) > hot", "receivers": ["Nobody"]},
        {"name": "Typo", "expression": "avg(gpu.x) > 5, critical > 4"},
    )
    result = vedette("apply", "-f", file)
    assert result.returncode == 1
    for part in (
        "rules.1.expression: Column 14",
        "rules.1.receivers: Receiver 'Nobody' does not exist. Receivers: On call.",
        "rules.2.name: The file has several rules named 'Typo'",
        "rules.2.critical_threshold",
    ):
        assert part in result.stderr
    assert "rules.0" not in result.stderr
    assert vedette("ls", "-o", "name").stdout == "GPU too hot\n"

    misspelled = rules_file(tmp_path, {"name": "a", "expresion": FULL}, {"name": "b"})
    wrong = vedette("apply", "-f", misspelled).stderr
    assert "rules.0.expresion: Unknown field." in wrong
    assert "rules.1.expression: Missing data" in wrong
    assert "no list 'rules'" in vedette("apply", "-f", "-", stdin="a: 1").stderr
    assert "not valid YAML" in vedette("apply", "-f", "-", stdin="rules: [").stderr


def test_alerts_are_silenced_and_silences_listed_and_expired(vedette: Vedette) -> None:
    silence = partial(vedette, command="silence")
    added = silence("add", "rule=GPU too hot", "appliance=~dgx-.*", "--comment", "Fans")
    ident = added.stdout.strip()
    listed = json.loads(silence("ls", "-o", "json").stdout)
    added_silence = next(item for item in listed if item["id"] == ident)
    assert added_silence["matchers"] == ["rule=GPU too hot", "appliance=~dgx-.*"]
    assert (added_silence["creator_email"], added_silence["comment"]) == (
        "bob@acme.example",
        "Fans",
    )
    assert silence("expire", ident).stdout == f"{ident} expired\n"
    assert silence("ls", "--state", "expired", "-o", "name").stdout == f"{ident}\n"
    assert "ended already" in silence("expire", ident).stderr
    assert "matchers: 'gpu' is not a matcher" in silence("add", "gpu").stderr
    assert "--duration" in silence("add", "gpu=1", "--duration", "long").stderr
    assert "--start" in silence("add", "gpu=1", "--start", "soon").stderr


def test_platform_rules_are_applied_from_a_file(
    vedette: Vedette, cast: Cast, sessions: SessionFactory, clock: FrozenClock, tmp_path: Path
) -> None:
    with sessions.begin() as session:
        olivia = create_api_token(session, scope_of(cast.olivia), name="t", now=clock.now)[1]
        create_receiver(
            session,
            scope_of(cast.olivia),
            name="Ops",
            kind=ReceiverKind.EMAIL,
            target="ops@example.com",
            box=BOX,
            now=clock.now,
            is_platform=True,
        )
    platform = partial(vedette, token=olivia)
    rule = {"name": "Hot", "expression": HOT, "receivers": ["Ops"]}
    file = rules_file(tmp_path, rule)
    on_platform = ("--platform", "-f", file)
    assert platform("apply", "--dry-run", *on_platform).stdout == "create  Hot\n"
    assert platform("ls", "--platform", "-o", "name").stdout == "Platform's\n"
    assert platform("apply", *on_platform).stdout == "create  Hot\n"
    assert platform("diff", *on_platform).returncode == 0
    exported = yaml.safe_load(platform("export", "--platform").stdout)["rules"]
    assert exported[0] == rule | {"is_enabled": True}
    changed = rules_file(tmp_path, {"name": "Hot", "expression": FULL})
    shown = platform("diff", "--platform", "--prune", "-f", changed).stdout
    assert f"+  expression: {FULL}" in shown
    assert "-- name: Platform's" in shown
    assert platform("apply", "--platform", "--prune", "-f", changed).stdout == (
        "update  Hot\ndelete  Platform's\n"
    )
    wrong = rules_file(
        tmp_path, {"name": "A", "expression": FULL}, {"name": "B", "expression": "x"}
    )
    assert "rules.1.expression" in platform("apply", "--platform", "-f", wrong).stderr
    assert platform("ls", "--platform", "-o", "name").stdout == "Hot\n"
    assert "may not operate the platform" in vedette("apply", *on_platform).stderr


def test_maintenance_windows_are_added_listed_and_removed(vedette: Vedette) -> None:
    silence = partial(vedette, command="silence")
    weekly = ("--schedule", "0 22 * * 0", "--duration", "4h", "--time-zone", "Europe/Oslo")
    ident = silence("window", "add", "Racks", "label.rack=b12", *weekly).stdout.strip()
    assert "0 22 * * 0 Europe/Oslo  4h" in silence("window", "ls").stdout
    assert "pending" in silence("ls", "--state", "pending", "-o", "json").stdout
    assert "--duration" in silence("window", "add", "x", "a=1", *weekly[:3], "long").stderr
    assert "already exists" in silence("window", "add", "Racks", "rule=x", *weekly).stderr
    assert silence("window", "rm", ident).stdout == f"{ident} deleted\n"
    assert "Racks" not in silence("window", "ls").stdout


def test_prometheus_rules_become_a_file_to_apply(vedette: Vedette, tmp_path: Path) -> None:
    groups = [
        {
            "rules": [
                {"alert": "Hot", "expr": "max_over_time(gpu_x[5m]) > 1"},
                {"alert": "At", "expr": "up @ 5 == 0"},
            ]
        }
    ]
    resource = {"kind": "PrometheusRule", "spec": {"groups": groups}}
    converted = vedette("import", "-f", "-", stdin=yaml.safe_dump_all([resource]))
    assert "At: not converted: The modifier @ is not supported (column 4)" in converted.stderr
    file = tmp_path / "converted.yaml"
    file.write_text(converted.stdout)
    expected = {"name": "Hot", "expression": "promql(max_over_time(gpu_x[5m]) > 1)"}
    assert yaml.safe_load(converted.stdout) == {"rules": [expected]}
    assert vedette("apply", "-f", str(file)).stdout == "create  Hot\n"
    assert vedette("diff", "-f", str(file)).returncode == 0

    wrong = vedette("import", "-f", "-", stdin="rules: []")
    assert "has no list of groups" in wrong.stderr


def test_rules_are_tested_without_a_portal(tmp_path: Path) -> None:
    rules_file(tmp_path, {"name": "GPU too hot", "expression": HOT})
    expected = {"exp_labels": {"appliance": "a1", "gpu": "0", "severity": "warning"}}
    case = {"eval_time": "3m", "alertname": "GPU too hot", "exp_alerts": [expected]}
    series = {"series": 'gpu.temperature_celsius{appliance="a1", gpu="0"}', "values": "90x5"}
    document = {
        "rule_files": ["*.yaml"],
        "tests": [{"name": "hot", "input_series": [series], "alert_rule_test": [case]}],
    }
    tests = tmp_path / "tests.yml"
    tests.write_text(yaml.safe_dump(document), encoding="utf-8")
    passed = run_vedette("rules", "test", str(tests), environ={})
    assert (passed.returncode, passed.stdout) == (0, f"{tests}: SUCCESS\n")

    series["values"] = "20x5"
    tests.write_text(yaml.safe_dump(document), encoding="utf-8")
    failed = run_vedette("rules", "test", str(tests), environ={})
    assert failed.returncode == 1
    assert "tests.0 (hot): GPU too hot at 3m" in failed.stdout
    assert "-    severity: warning" in failed.stdout


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"values": "90x5 nine"}, ("tests.0 (hot): input_series.0 (gpu.", "'nine'")),
        ({"series": 'gpu.power_watts{gpu="0"'}, ("input_series.0 (gpu.power", "Column 24")),
        ({"series": 'gpu.power_watts{gpu!="0"}'}, ("input_series.0 (gpu.power", "one value")),
        ({"series": 3}, ("input_series.0 (3): Column 1", "a metric such as")),
        ({"eval_time": "soon"}, ("tests.0 (hot): alert_rule_test.0: eval_time", "'soon'")),
        ({"alertname": "GPU hot"}, ("alert_rule_test.0", "'GPU hot'", "GPU too hot")),
        ({"rule_files": ["missing*.yaml"]}, ("rule_files", "missing*.yaml")),
        ({"evaluation_interval": "often"}, ("evaluation_interval", "'often'")),
        ({"expression": "avg(gpu.x) >"}, ("rules.yaml: rules.0 (GPU too hot): Column 13",)),
        ({"tests": ["x"]}, ("tests.0: Expected a mapping",)),
    ],
)
def test_an_error_of_a_test_names_file_test_and_series(
    tmp_path: Path, change: dict[str, Any], parts: tuple[str, ...]
) -> None:
    rule = {"name": "GPU too hot", "expression": HOT}
    series = {"series": 'gpu.temperature_celsius{appliance="a1", gpu="0"}', "values": "90x5"}
    case = {"eval_time": "3m", "alertname": "GPU too hot"}
    test = {"name": "hot", "input_series": [series], "alert_rule_test": [case]}
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    parts_of_files: tuple[dict[str, Any], ...] = (rule, series, case, document)
    for part in parts_of_files:
        part.update({key: value for key, value in change.items() if key in part})
    rules_file(tmp_path, rule)
    tests = tmp_path / "tests.yml"
    tests.write_text(yaml.safe_dump(document), encoding="utf-8")
    result = run_vedette("rules", "test", str(tests), environ={})
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    for text in (str(tests), *parts):
        assert text in result.stderr


def test_a_test_that_fails_is_named_with_its_file(tmp_path: Path) -> None:
    rules_file(tmp_path, {"name": "GPU too hot", "expression": HOT})
    case = {"eval_time": "3m", "alertname": "GPU too hot", "exp_alerts": [{"exp_labels": {}}]}
    tests = tmp_path / "tests.yml"
    document = {"rule_files": ["rules.yaml"], "tests": [{"alert_rule_test": [case]}]}
    tests.write_text(yaml.safe_dump(document), encoding="utf-8")
    failed = run_vedette("rules", "test", str(tests), environ={})
    assert failed.stdout.startswith(f"{tests}: FAILED\n  tests.0: GPU too hot at 3m\n")

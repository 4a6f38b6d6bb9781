"""`vedette agent once`: samples of this host, now, without an identity or a configuration."""

import json
import subprocess
import sys
from pathlib import Path

from collector.reading.once import read_once
from core.clock import utc_now
from plugins.base import PluginContext
from tests.fixtures.puppets import puppet_plan
from timeseries.lineprotocol import parse


def once(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "agent", "once", "--data-dir", str(home)]
    return subprocess.run(
        [*command, "--wait", "0.1", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_samples_are_shown_with_their_units(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "uptime", "--plugin", "memory")
    assert result.returncode == 0, result.stderr
    heading, *rows = [line.split() for line in result.stdout.splitlines()]
    assert heading == ["measurement", "tags", "field", "value"]
    found = {(row[0], row[1]): row[-1] for row in rows}
    assert found["uptime", "uptime_seconds"] == "s"
    assert found["memory", "used_percent"] == "%"
    assert {measurement for measurement, _ in found} == {"uptime", "memory"}


def test_rates_are_there_at_once_for_they_are_read_twice(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "cpu", "--format", "lines")
    parsed = parse(result.stdout.encode(), default_time_ns=0)
    assert parsed.errors == []
    assert "usage_percent" in parsed.points[0].fields


def test_what_is_read_more_rarely_than_twice_is_shown_too(tmp_path: Path) -> None:
    shown = once(tmp_path, "--plugin", "processes").stdout
    assert {"forks_per_second", "total", "running"} <= set(shown.split())


def test_json_is_for_programs(tmp_path: Path) -> None:
    [point] = json.loads(once(tmp_path, "--plugin", "uptime", "--format", "json").stdout)
    assert point["measurement"] == "uptime"
    assert point["fields"]["uptime_seconds"] > 0


def test_a_plugin_with_nothing_to_read_says_why(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "exec")
    assert result.returncode == 0
    assert "plugin exec has nothing to read here: no programs are configured" in result.stderr


def test_the_configuration_is_followed_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(
        'portal_urls = ["http://portal.example.com"]\n[plugins.disk]\nskip_devices = ["*"]\n',
        encoding="utf-8",
    )
    result = once(tmp_path, "--plugin", "disk")
    assert result.stdout == ""
    assert "plugin disk gave no samples" in result.stderr


def test_an_unknown_plugin_is_refused_with_the_list(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "gpus")
    assert result.returncode == 1
    assert "there is no plugin gpus; there are amdgpu, collectd_python" in result.stderr


def test_plugins_of_a_child_are_read_there_and_the_child_ends() -> None:
    plans = [puppet_plan(name="good"), puppet_plan("fail", name="bad")]
    good, bad = read_once(plans, PluginContext(), clock=utc_now, wait=lambda: None)
    [point] = good.points
    assert not Path(f"/proc/{point.tags['pid']}").exists()
    assert str(bad.fault) == "broken on purpose"


def test_a_plugin_that_hangs_is_given_up() -> None:
    plans = [
        puppet_plan("hang", name="in a child", time_limit_seconds=0.3),
        puppet_plan("hang", name="in the agent", child="", time_limit_seconds=0.1),
        puppet_plan(name="good", child=""),
    ]
    first, second, good = read_once(plans, PluginContext(), clock=utc_now, wait=lambda: None)
    assert "child process was killed" in str(first.fault)
    assert "did not come back within 0.1 s" in str(second.fault)
    assert good.fault is None

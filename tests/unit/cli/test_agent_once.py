"""`vedette agent once`: samples of this host, now, without an identity or a configuration."""

import json
import sys
from pathlib import Path

from collector.reading.once import read_once
from core.clock import utc_now
from plugins.base import PluginContext
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.puppets import puppet_plan
from timeseries.lineprotocol.parser import parse


def once(home: Path, *arguments: str) -> Result:
    return run_vedette("agent", "once", "--data-dir", str(home), "--wait", "0.1", *arguments)


def test_samples_are_shown_with_their_units(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "uptime", "--plugin", "memory")
    assert result.returncode == 0, result.stderr
    heading, *rows = [line.split() for line in result.stdout.splitlines()]
    assert heading == ["measurement", "tags", "field", "value"]
    values = {(row[0], row[1]): row[-1] for row in rows}
    assert values["uptime", "uptime_seconds"][-1] in "smhd"
    assert values["memory", "used_percent"] == "%"
    assert {measurement for measurement, _ in values} == {"uptime", "memory"}


def test_rates_are_shown_because_plugins_are_read_twice(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "cpu", "--format", "lines")
    parsed = parse(result.stdout.encode(), default_time_ns=0)
    assert parsed.errors == []
    assert "usage_percent" in parsed.points[0].fields


def test_plugins_with_a_longer_interval_are_shown_too(tmp_path: Path) -> None:
    shown = once(tmp_path, "--plugin", "processes").stdout
    assert {"forks_per_second", "total", "running"} <= set(shown.split())


def test_json_output(tmp_path: Path) -> None:
    [point] = json.loads(once(tmp_path, "--plugin", "uptime", "--format", "json").stdout)
    assert point["measurement"] == "uptime"
    assert point["fields"]["uptime_seconds"] > 0


def test_an_unavailable_plugin_is_explained(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "exec")
    assert result.returncode == 0
    assert "plugin exec is not available on this host: no programs are configured" in result.stderr


def test_the_configuration_file_applies(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(
        'portal_urls = ["http://portal.example.com"]\n[plugins.disk]\nskip_devices = ["*"]\n',
        encoding="utf-8",
    )
    result = once(tmp_path, "--plugin", "disk")
    assert result.stdout == ""
    assert "plugin disk returned no samples" in result.stderr


def test_an_unknown_plugin_is_rejected_with_the_list(tmp_path: Path) -> None:
    result = once(tmp_path, "--plugin", "gpus")
    assert result.returncode == 1
    assert "Unknown plugin gpus in --plugin. Available: amdgpu, amdgpu_processes" in result.stderr


def test_plugins_in_a_worker_process_are_read_and_the_worker_exits() -> None:
    plans = [puppet_plan(name="good"), puppet_plan("fail", name="bad")]
    good, bad = read_once(plans, PluginContext(), clock=utc_now, wait=lambda _seconds: None)
    [point] = good.points
    assert not Path(f"/proc/{point.tags['pid']}").exists()
    assert str(bad.error) == "broken on purpose"


def test_a_plugin_that_hangs_times_out() -> None:
    plans = [
        puppet_plan("hang", name="in a worker", time_limit_seconds=0.3),
        puppet_plan("hang", name="in the agent", worker="", time_limit_seconds=0.1),
        puppet_plan(name="good", worker=""),
    ]
    first, second, good = read_once(
        plans, PluginContext(), clock=utc_now, wait=lambda _seconds: None
    )
    assert "worker process was killed" in str(first.error)
    assert "no response within 0.1 s" in str(second.error)
    assert good.error is None


def test_rates_of_programs_that_count_are_shown(tmp_path: Path) -> None:
    program = """
import time
print(f'PUTVAL "h/ups/counter-in" interval=1 N:{int(time.time() * 1000)}', flush=True)
print('PUTVAL "h/ups/gauge-load" interval=1 N:5', flush=True)
"""
    (tmp_path / "count.py").write_text(program)
    (tmp_path / "agent.toml").write_text(
        'portal_urls = ["http://portal.example.com"]\n'
        "[plugins.exec]\ninterval_seconds = 1\n[[plugins.exec.programs]]\n"
        f'command = ["{sys.executable}", "{tmp_path}/count.py"]\ninterval_seconds = 1\n',
        encoding="utf-8",
    )
    shown = run_vedette(
        *("agent", "once", "--data-dir", str(tmp_path)),
        *("--plugin", "exec", "--format", "json"),
    )
    fields = {
        key: value for point in json.loads(shown.stdout) for key, value in point["fields"].items()
    }
    rates = [value for key, value in fields.items() if key.endswith("per_second")]
    assert rates, shown.stdout
    assert 5.0 in fields.values()

"""A module that others published, unchanged, under collectd itself and under our plugin."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from plugins.base import PluginContext
from plugins.collectd_python.reader import CollectdPythonConfig, CollectdPythonPlugin
from tests.cast import FrozenClock
from tests.fixtures.collectd import our_readings, running_collectd, stored_readings
from tests.fixtures.haproxy import MODULES, control_socket
from tests.fixtures.polling import eventually
from timeseries.points import Point

CONF = """
Interval 1
<LoadPlugin python>
  Globals true
</LoadPlugin>
<Plugin python>
  ModulePath "{folder}/modules"
  Import "collectd_haproxy"
  <Module haproxy>
    Socket "{folder}/admin.sock"
  </Module>
</Plugin>
"""

# Plugin, instance, type and data source, to the value: the readings without their times.
Series = dict[tuple[str, str, str, str], float]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the published module: neither collectd nor Python writes into the checkout."""
    shutil.copytree(MODULES / "collectd_haproxy", tmp_path / "modules" / "collectd_haproxy")
    return tmp_path


def read_twice(folder: Path) -> list[Point]:
    """Load the module as the agent would, and read it at two times, as counters need."""
    clock = FrozenClock()
    config = CollectdPythonConfig(
        module_paths=(folder / "modules",),
        imports=("collectd_haproxy",),
        modules={"haproxy": {"Socket": str(folder / "admin.sock")}},
    )
    plugin = CollectdPythonPlugin(config, PluginContext(), clock=clock)
    points = list(plugin.gather(clock.now))
    clock.now += timedelta(seconds=10)
    points += plugin.gather(clock.now)
    plugin.close()
    return points


def series_of(readings: dict[tuple[str, str, str, int, str], float]) -> Series:
    return {
        (plugin, instance, kind, name): value
        for (plugin, instance, kind, _, name), value in readings.items()
    }


def test_a_published_module_gives_what_it_gives_under_collectd(folder: Path) -> None:
    with control_socket(folder / "admin.sock"):
        with running_collectd(folder, CONF):
            eventually(
                lambda: (
                    ("haproxy", "app.BACKEND", "counter-session_count", "value")
                    in series_of(stored_readings(folder))
                ),
                what="the second reading of the module's last proxy",
            )
        theirs = series_of(stored_readings(folder))
        ours = series_of(our_readings(read_twice(folder)))
    assert len(ours) > 100
    assert ours == theirs


def test_its_readings_are_those_that_haproxy_reported(folder: Path) -> None:
    with control_socket(folder / "admin.sock"):
        ours = series_of(our_readings(read_twice(folder)))
    assert ours["haproxy", "haproxy", "gauge-max_connections", "value"] == 2000
    assert ours["haproxy", "app.app-2", "gauge-bytes_in", "value"] == 246
    assert ours["haproxy", "web.FRONTEND", "counter-http_response_2xx", "value"] == 0.0

"""One module under collectd itself and under our plugin: the same answers, series and rates."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plugins.base import PluginContext
from plugins.collectd_python.reader import CollectdPythonConfig, CollectdPythonPlugin
from tests.fixtures.collectd import (
    Readings,
    our_readings,
    running_collectd,
    stored_readings,
    text_of,
)
from tests.fixtures.collectd_probe import MODULE
from tests.fixtures.polling import eventually
from timeseries.points import Point

PYTHON_CONF = """
<LoadPlugin python>
  Globals true
</LoadPlugin>
<Plugin python>
  ModulePath "{folder}"
  Import "vedette_probe"
  <Module vedette_probe>
    Output "{folder}/theirs"
    Port 5
    Verbose true
    Pair "a" "b"
    Key 1.5
    Key "s"
    <Inner "x" 2>
      Deep false
    </Inner>
  </Module>
</Plugin>
"""

Records = dict[str, list[Any]]


@dataclass(frozen=True)
class Both:
    """The records of the module under collectd and under Vedette, and the readings of each."""

    theirs: Records
    ours: Records
    their_readings: Readings
    our_readings: Readings


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The module, run once by each."""
    folder = tmp_path_factory.mktemp("collectd")
    (folder / "vedette_probe.py").write_text(MODULE, encoding="utf-8")
    with running_collectd(folder, PYTHON_CONF):
        eventually(lambda: "last" in text_of(folder / "theirs"), what="the module's last value")
    points = _run_ours(folder)
    return Both(
        theirs=_records(folder / "theirs"),
        ours=_records(folder / "ours"),
        their_readings=stored_readings(folder),
        our_readings=our_readings(points),
    )


def _run_ours(folder: Path) -> list[Point]:
    table = {
        "Output": str(folder / "ours"),
        "Port": 5,
        "Verbose": True,
        "Pair": [["a", "b"]],
        "Key": [1.5, "s"],
        "Inner": {"_values": ["x", 2], "Deep": False},
    }
    config = CollectdPythonConfig(module_paths=(folder,), modules={"vedette_probe": table})
    plugin = CollectdPythonPlugin(config, PluginContext())
    points = list(plugin.gather(datetime.now(UTC)))
    plugin.close()
    return points


def _records(path: Path) -> Records:
    records: Records = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, value = json.loads(line)
        records.setdefault(kind, []).append(value)
    return records


def _plain(answer: object) -> object:
    """Return an answer without what is said in other words: why a name is no text."""
    if not isinstance(answer, list) or answer[:1] not in (["TypeError"], ["AttributeError"]):
        return answer
    if answer[0] == "AttributeError":
        return [answer[0], str(answer[1]).replace("collectd.Values", "Values")]
    is_no_text = re.search(r"str, bytes or bytearray|expected bytes|null byte", str(answer[1]))
    return ["TypeError", "no text"] if is_no_text else answer


def test_the_module_gets_the_same_configuration(both: Both) -> None:
    their_data, their_node = both.theirs["config"][0]
    our_data, our_node = both.ours["config"][0]
    assert our_data == their_data == "given"

    def without_output(node: list[Any]) -> list[Any]:
        return [*node[:2], [child for child in node[2] if child[0] != "Output"]]

    assert without_output(our_node) == without_output(their_node)


def test_the_api_gives_the_same_answers(both: Both) -> None:
    theirs = {body: _plain(answer) for body, answer in both.theirs["answer"]}
    ours = {body: _plain(answer) for body, answer in both.ours["answer"]}
    assert len(theirs) > 50
    assert ours == theirs


def test_init_and_shutdown_are_called_once(both: Both) -> None:
    for records in (both.theirs, both.ours):
        assert (len(records["init"]), len(records["shutdown"])) == (1, 1)


def test_write_callbacks_get_the_same_series_values_times_and_meta_data(both: Both) -> None:
    assert len(both.theirs["write"]) > 30
    assert both.ours["write"] == both.theirs["write"]


def test_notifications_are_the_same(both: Both) -> None:
    assert both.ours["notification"] == both.theirs["notification"]


def test_our_points_are_the_readings_that_collectd_stores(both: Both) -> None:
    assert len(both.our_readings) > 20
    assert set(both.our_readings) == set(both.their_readings)
    for key, value in both.our_readings.items():
        assert value == pytest.approx(both.their_readings[key]), key

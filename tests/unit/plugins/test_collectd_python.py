"""Modules written for collectd, loaded by the plugin: imported, configured, and let go."""

import sys
from datetime import datetime
from pathlib import Path

import pytest

from plugins.base import PluginContext, PluginError, PluginUnavailableError
from plugins.collectd_python.reader import CollectdPythonConfig, CollectdPythonPlugin
from tests.cast import FrozenClock
from tests.unit.plugins.loaded_modules import Load, load, seen

__all__ = ["load"]


def test_dispatched_values_become_points(load: Load) -> None:
    it = load("""
    def read():
        values = collectd.Values(type='gauge', plugin='spam', plugin_instance='eggs')
        values.dispatch(type_instance='ham', values=[4.5])
    collectd.register_read(read)
    """)
    [point] = it.gather()
    assert point.measurement == "collectd_spam"
    assert point.tags == {"instance": "eggs", "type": "gauge", "type_instance": "ham"}
    assert point.fields == {"value": 4.5}
    assert point.time_ns == int(it.clock.now.timestamp()) * 10**9


def test_counters_become_rates_by_their_own_times(load: Load) -> None:
    it = load("""
    def read():
        for time, sent in ((100, 0), (110, 500)):
            collectd.Values(type='if_octets', time=time).dispatch(values=(sent, sent * 2))
    collectd.register_read(read)
    """)
    [point] = it.gather()
    assert point.measurement == "collectd_python"
    assert point.fields == {"rx_per_second": 50.0, "tx_per_second": 100.0}


def test_a_configuration_becomes_nodes(load: Load) -> None:
    table = {
        "Host": "a",
        "Port": 5,
        "Verbose": True,
        "Pair": [["a", "b"]],
        "Key": [1.5, "s"],
        "Inner": {"_values": ["x"], "Deep": {"A": 1}},
    }
    it = load(
        """
        def walk(node, depth=0):
            seen.append((depth, node.key, node.values, node.parent and node.parent.key))
            for child in node.children:
                walk(child, depth + 1)
        collectd.register_config(walk)
        collectd.register_read(print)
        """,
        modules={"spam": table},
    )
    it.gather()
    assert seen() == [
        (0, "Module", ("spam",), None),
        (1, "Host", ("a",), "Module"),
        (1, "Port", (5.0,), "Module"),
        (1, "Verbose", (True,), "Module"),
        (1, "Pair", ("a", "b"), "Module"),
        (1, "Key", (1.5,), "Module"),
        (1, "Key", ("s",), "Module"),
        (1, "Inner", ("x",), "Module"),
        (2, "Deep", (), "Inner"),
        (3, "A", (1.0,), "Deep"),
    ]


def test_a_module_may_be_configured_under_a_name_of_its_own(load: Load) -> None:
    it = load(
        """
        collectd.register_config(lambda node: seen.append(node.children[0].values), name='Ham')
        collectd.register_read(print)
        """,
        imports=("spam",),
        modules={"ham": {"Size": 3}},
    )
    it.gather()
    assert seen() == [(3.0,)]


def test_callbacks_are_called_in_order_and_get_data_only_if_given(
    load: Load,
) -> None:
    it = load("""
    collectd.register_config(lambda node, data: seen.append(('config', data)), 'a')
    collectd.register_init(lambda *args: seen.append(('init', args)))
    collectd.register_init(lambda *args: seen.append(('init', args)), data=None)
    collectd.register_read(lambda *args: seen.append(('read', args)), 0, {'b': 1})
    collectd.register_flush(lambda *args: seen.append(('flush', args)))
    collectd.register_shutdown(lambda *args: seen.append(('shutdown', args)))
    """)
    it.gather()
    module = sys.modules["spam"]
    it.close()
    assert module.seen == [
        ("config", "a"),
        ("init", (None,)),  # the newest first, as in collectd
        ("init", ()),
        ("read", ({"b": 1},)),
        ("flush", (0, None)),
        ("shutdown", ()),
    ]


def test_init_and_imports_happen_once(load: Load) -> None:
    it = load("""
    collectd.register_init(lambda: seen.append('init'))
    collectd.register_read(lambda: seen.append('read'))
    """)
    it.gather()
    it.gather(after_seconds=10)
    assert seen() == ["init", "read", "read"]


@pytest.mark.parametrize(
    "source",
    ["import nowhere_at_all", "syntax error", "raise SystemExit(3)", "import sys; sys.exit()"],
)
def test_a_module_that_can_not_be_imported_leaves_the_others_alone(
    load: Load, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    it = load(
        source, "collectd.register_read(lambda: collectd.Values(type='gauge').dispatch(values=[1]))"
    )
    assert len(it.gather()) == 1
    assert "collectd_python: spam: " in caplog.text


def test_when_no_module_can_be_loaded_the_plugin_fails(load: Load) -> None:
    it = load("import nowhere_at_all")
    with pytest.raises(PluginError, match="no callbacks registered by spam"):
        it.gather()


def test_closing_takes_the_modules_and_collectd_out_of_python(load: Load) -> None:
    path = list(sys.path)
    it = load("collectd.register_read(print)")
    it.gather()
    assert "spam" in sys.modules
    it.close()
    assert "spam" not in sys.modules
    assert "collectd" not in sys.modules
    assert sys.path == path


def test_a_package_registers_itself_again_when_the_plugin_is_opened_anew(
    load: Load, tmp_path: Path
) -> None:
    package = tmp_path / "eggs"
    package.mkdir()
    (package / "__init__.py").write_text("from eggs import white\n", encoding="utf-8")
    (package / "white.py").write_text(
        "import collectd\nimport yolk\ncollectd.register_read(yolk.read)\n", encoding="utf-8"
    )
    (tmp_path / "yolk.py").write_text(
        "import collectd\n"
        "def read():\n"
        "    collectd.Values(plugin='eggs', type='gauge').dispatch(values=[1])\n",
        encoding="utf-8",
    )
    for _ in range(2):
        it = load(imports=("eggs",), modules={})
        assert [point.measurement for point in it.gather()] == ["collectd_eggs"]
        it.close()


def test_the_types_of_a_module_come_from_its_own_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "own.db").write_text("eggs white:GAUGE:0:U, yolk:GAUGE:0:U\n", encoding="utf-8")
    it = load(
        """
        def read():
            collectd.Values(type='eggs').dispatch(values=[1, 2])
        collectd.register_read(read)
        """,
        types_db=(tmp_path / "own.db",),
    )
    assert it.gather()[0].fields == {"white": 1.0, "yolk": 2.0}


def test_a_configuration_without_a_callback_is_logged(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    load("collectd.register_read(print)", modules={"spam": {"Key": 1}}).gather()
    assert "spam: has a configuration, but registered no config callback" in caplog.text


def test_without_modules_there_is_nothing_to_read(clock: FrozenClock) -> None:
    plugin = CollectdPythonPlugin(CollectdPythonConfig(), PluginContext(), clock=clock)
    with pytest.raises(PluginUnavailableError, match="no modules"):
        plugin.gather(datetime.fromisoformat("2026-03-01T12:00:00+00:00"))
    plugin.close()


def test_only_with_modules_a_child_process_is_worth_its_cost() -> None:
    context = PluginContext()
    assert not CollectdPythonConfig().needs_worker(context)
    assert CollectdPythonConfig(modules={"spam": {}}).needs_worker(context)
    assert CollectdPythonConfig(imports=("spam",)).needs_worker(context)

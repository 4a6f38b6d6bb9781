"""Modules written for collectd, loaded by the plugin: what they send and may do wrong."""

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plugins.base import PluginContext, PluginError, PluginUnavailableError
from plugins.collectd_python import CollectdPythonPlugin
from plugins.collectd_python import daemon as daemon_module
from plugins.collectd_python import reader as reader_module
from plugins.collectd_python.reader import CollectdPythonConfig
from tests.cast import FrozenClock
from timeseries.points import Point

Seen = list[Any]


class Loaded:
    """A plugin with modules, read by a clock that only the test moves."""

    def __init__(self, folder: Path, clock: FrozenClock) -> None:
        self.folder = folder
        self.clock = clock
        self.plugin: CollectdPythonPlugin | None = None

    def write(self, name: str, source: str) -> None:
        text = f"import collectd\nseen = []\n{textwrap.dedent(source)}"
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")

    def gather(self, *, after_seconds: float = 0.0) -> list[Point]:
        assert self.plugin is not None
        self.clock.now += timedelta(seconds=after_seconds)
        return list(self.plugin.gather(self.clock.now))

    def close(self) -> None:
        plugin, self.plugin = self.plugin, None
        if plugin is not None:
            plugin.close()


Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path, clock: FrozenClock) -> Iterator[Load]:
    """Return a function that loads one module from its source, or several by their names."""
    loaded = Loaded(tmp_path, clock)

    def load_modules(source: str = "", *more: str, **settings: object) -> Loaded:
        for number, text in enumerate([source, *more]):
            loaded.write(f"spam{number or ''}", text)
        names = [f"spam{number or ''}" for number in range(1 + len(more))]
        settings.setdefault("modules", {name: {} for name in names})
        config = CollectdPythonConfig(module_paths=(tmp_path,), **settings)  # type: ignore[arg-type]
        loaded.plugin = CollectdPythonPlugin(config, PluginContext(), clock=clock)
        return loaded

    yield load_modules
    loaded.close()


def seen(name: str = "spam") -> Seen:
    return list(sys.modules[name].seen)


def attempted(body: str) -> str:
    """Return the source of a module that keeps what an expression gives, or raises, in `seen`."""
    return f"""
    def attempt():
        try:
            seen.append({body})
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
    collectd.register_init(attempt)
    """


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


def test_callbacks_are_called_in_the_order_of_their_lives_and_data_only_where_given(
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


def test_a_callback_is_read_at_its_own_interval(load: Load) -> None:
    it = load(
        """
        collectd.register_read(lambda: seen.append('slow'), interval=30, name='slow')
        collectd.register_read(lambda: seen.append('usual'), name='usual')
        """,
        read_interval_seconds=10.0,
    )
    for _ in range(5):
        it.gather(after_seconds=10)
    assert (seen().count("slow"), seen().count("usual")) == (2, 5)


def test_a_jitter_of_the_reading_skips_no_call(load: Load) -> None:
    it = load("collectd.register_read(lambda: seen.append(1))", read_interval_seconds=10.0)
    for seconds in (0.0, 9.8, 10.3, 9.7, 10.2):
        it.gather(after_seconds=seconds)
    assert len(seen()) == 5


def test_values_carry_the_interval_of_their_callback(load: Load) -> None:
    it = load("""
    def read():
        collectd.Values(type='gauge').dispatch(values=[1])
        collectd.Values(type='gauge', interval=7).dispatch(values=[2])
    collectd.register_read(read, 30)
    collectd.register_write(lambda values: seen.append((values.values, values.interval)))
    """)
    it.gather()
    assert seen() == [([1.0], 30.0), ([2.0], 7.0)]


def test_a_failing_callback_is_called_ever_less_often_and_named_with_its_traceback(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    it = load(
        """
        def read():
            seen.append('read')
            raise ValueError('no eggs')
        collectd.register_read(read)
        """,
        "collectd.register_read(lambda: collectd.Values(type='gauge').dispatch(values=[1]))",
    )
    for seconds in (0, 10, 10, 10, 10, 10, 10):
        assert len(it.gather(after_seconds=seconds)) == 1  # the other module goes on
    assert len(seen()) == 3  # at 0, 20 and 60 s
    assert "spam: Unhandled python exception in read callback: ValueError: no eggs" in caplog.text
    assert "spam.py" in caplog.text
    assert "next in 80 s" in caplog.text


def test_a_callback_that_works_again_gets_its_interval_back(load: Load) -> None:
    it = load("""
    def read():
        seen.append('read')
        if len(seen) == 1:
            raise OSError
    collectd.register_read(read)
    """)
    for seconds in (0, 20, 10, 10):
        it.gather(after_seconds=seconds)
    assert len(seen()) == 4


def test_collectds_own_error_costs_no_traceback(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    it = load("""
    def read():
        raise collectd.CollectdError('no answer')
    collectd.register_read(read)
    """)
    it.gather()
    assert "CollectdError in read callback: no answer" in caplog.text
    assert "Traceback" not in caplog.text


def test_tracebacks_can_be_left_out(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load("collectd.register_read(lambda: 1 / 0)", log_traces=False).gather()
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" not in caplog.text


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
    with pytest.raises(PluginError, match="none of spam registered anything"):
        it.gather()


def test_a_callback_that_leaves_the_program_ends_only_itself(load: Load) -> None:
    it = load(
        "import sys\ncollectd.register_read(sys.exit, name='spam')",
        "collectd.register_read(lambda: collectd.Values(type='gauge').dispatch(values=[1]))",
    )
    assert len(it.gather()) == 1


def test_a_callback_that_hangs_holds_up_no_other(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reader_module, "READ_WAIT_SECONDS", 0.2)
    it = load(
        """
        import threading
        may_end = threading.Event()
        collectd.register_read(may_end.wait)
        collectd.register_read(may_end.wait, name='spam')
        """,
        "collectd.register_read(lambda: collectd.Values(type='gauge').dispatch(values=[1]))",
    )
    assert len(it.gather()) == 1
    assert len(it.gather(after_seconds=10)) == 1
    assert len(it.gather(after_seconds=10)) == 1
    assert caplog.text.count("spam: its read callback hangs") == 1
    sys.modules["spam"].may_end.set()


def test_values_from_a_modules_own_thread_come_with_the_next_reading(load: Load) -> None:
    it = load("collectd.register_read(lambda: None)")
    it.gather()
    values = sys.modules["collectd"].Values(type="gauge", plugin="own")
    thread = threading.Thread(target=lambda: values.dispatch(values=[3]))
    thread.start()
    thread.join()
    [point] = it.gather()
    assert point.measurement == "collectd_own"


def test_too_many_values_are_dropped_and_counted(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon_module, "MAX_QUEUED", 5)
    it = load("""
    def read():
        for number in range(8):
            collectd.Values(type='gauge', type_instance=str(number)).dispatch(values=[1])
    collectd.register_read(read)
    """)
    assert len(it.gather()) == 5
    assert "dropped 3 values" in caplog.text


def test_write_callbacks_get_copies_of_all_that_is_dispatched(load: Load) -> None:
    it = load("""
    def read():
        values = collectd.Values(type='counter', plugin='a/b', host='/h', time=5, interval=2)
        meta = {'n': 1, 'big': 2**63, 'text': 'x', 'yes': True, 'l': [1]}
        values.dispatch(values=[7.9], meta=meta)
        seen.append(repr(values))
    def write(values, data):
        kinds = {key: type(one).__name__ for key, one in values.meta.items()}
        seen.append((repr(values), kinds, data))
        values.values.append('changed')
    collectd.register_read(read)
    collectd.register_write(write, data='x')
    """)
    it.gather()
    original, (written, kinds, data) = seen()
    assert original == (
        "collectd.Values(type='counter',plugin='a/b',host='/h',time=5.0,interval=2.0)"
    )
    assert written == (
        "collectd.Values(type='counter',plugin='a_b',host='h',time=5.0,interval=2.0,values=[7],"
        "meta={'n': 1, 'big': 9223372036854775808, 'text': 'x', 'yes': True, 'l': '[1]'})"
    )
    assert kinds == {"n": "Signed", "big": "Unsigned", "text": "str", "yes": "bool", "l": "str"}
    assert data == "x"


def test_write_goes_to_one_callback_at_once(load: Load) -> None:
    it = load("""
    def read():
        collectd.Values(type='gauge', plugin='p').write('python.one', values=[1])
        seen.append('next')
    collectd.register_write(lambda values: seen.append('one'), name='one')
    collectd.register_write(lambda values: seen.append('two'), name='two')
    collectd.register_read(read)
    """)
    assert it.gather() == []
    assert seen() == ["one", "next"]


def test_a_notification_reaches_the_callbacks_and_becomes_a_point(load: Load) -> None:
    it = load("""
    def read():
        told = collectd.Notification('gauge', 'on fire', severity=collectd.NOTIF_WARNING)
        told.dispatch(plugin='ups', time=5, meta={'a': 'b'})
    collectd.register_read(read)
    collectd.register_notification(lambda told: seen.append(repr(told)))
    """)
    [point] = it.gather()
    assert point.measurement == "notification"
    assert point.tags == {"severity": "warning", "plugin": "ups", "type": "gauge"}
    assert (point.fields, point.time_ns) == ({"events": 1}, 5 * 10**9)
    host = sys.modules["collectd"].Values.receiver.hostname
    [told] = seen()
    assert told == (
        f"collectd.Notification(type='gauge',plugin='ups',host={host!r},time=5.0,severity=2,"
        "message='on fire',meta={'a': 'b'})"
    )


def test_log_calls_reach_the_log_with_the_modules_name_and_the_log_callbacks(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    it = load("""
    def read():
        for name in ('debug', 'info', 'notice', 'warning', 'error'):
            getattr(collectd, name)('100%s')
    def on_log(severity, message):
        seen.append((severity, message))
        collectd.info('a callback that logs must not loop')
    collectd.register_log(on_log)
    collectd.register_read(read)
    """)
    it.gather()
    assert seen() == [(severity, "100%s") for severity in (7, 6, 5, 4, 3)]
    levels = [one.levelname for one in caplog.records if one.message.endswith("spam: 100%s")]
    assert levels == ["DEBUG", "INFO", "INFO", "WARNING", "ERROR"]


def test_flush_calls_the_callback_of_that_name(load: Load) -> None:
    it = load("""
    collectd.register_flush(lambda *args: seen.append(args), data='d')
    def read():
        collectd.flush('python.spam', 5, 'x')
        collectd.flush('python.other')
        collectd.flush()
    collectd.register_read(read)
    """)
    it.gather()
    assert seen() == [(5, "x", "d"), (-1, None, "d")]


def test_callbacks_can_be_taken_back(load: Load) -> None:
    it = load("""
    def read():
        seen.append('read')
    def init():
        collectd.unregister_read(read)
        collectd.unregister_read('python.b')
    collectd.register_read(read)
    collectd.register_read(read, name='b')
    collectd.register_read(read, name='c')
    collectd.register_init(init)
    """)
    it.gather()
    assert seen() == ["read"]


def test_a_read_function_of_a_known_name_is_refused_with_a_warning(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    it = load("""
    collectd.register_read(lambda: seen.append(1))
    collectd.register_read(lambda: seen.append(2))
    """)
    it.gather()
    assert seen() == [1]
    assert 'The read function "python.spam" is already registered' in caplog.text


# What collectd 5.12 answers to each of these, taken from a run of it.
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("collectd.register_read(print, name='x')", "python.x"),
        ("collectd.register_write(attempt)", "python.spam"),
        ("repr(collectd.Values(type='gauge'))", "collectd.Values(type='gauge')"),
        (
            "repr(collectd.Values('gauge', [1], 'i', 't', 'p'))",
            "collectd.Values(type='gauge',type_instance='t',plugin='p',plugin_instance='i',values=[1])",
        ),
        (
            "collectd.get_dataset('if_octets')",
            [("rx", "derive", 0.0, None), ("tx", "derive", 0.0, None)],
        ),
        ("(collectd.NOTIF_FAILURE, collectd.NOTIF_WARNING, collectd.NOTIF_OKAY)", (1, 2, 4)),
        ("collectd.DS_TYPE_COUNTER + collectd.DS_TYPE_ABSOLUTE", "counterabsolute"),
        ("collectd.LOG_ERROR", 3),
        ("repr(collectd.Signed(5)) + repr(collectd.Unsigned(5) + 1)", "56"),
        ("repr(collectd.Config('k'))", "'k'<collectd.Config root node >"),
        ("len(collectd.Values(plugin='w' * 300).plugin)", 127),
        ("len(collectd.Notification(message='w' * 300).message)", 255),
        ("collectd.Values(plugin=b'abc').plugin", "abc"),
        ("collectd.Values(type='gauge').dispatch(values=['12.5'])", None),
        ("collectd.Values(type='gauge').dispatch(values=[float('nan')])", None),
        ("collectd.Values(type='derive').dispatch(values=(-5,))", None),
        ("collectd.Values(type='gauge').dispatch(values=[1], meta=None)", None),
        ("collectd.register_read(5)", ("TypeError", "callback needs a be a callable object.")),
        ("collectd.get_dataset('nope')", ("TypeError", "Dataset nope not found")),
        ("collectd.Values(type='nope')", ("TypeError", "Dataset nope not found")),
        ("setattr(collectd.Values(), 'type', 'nope')", ("TypeError", "Dataset nope not found")),
        ("collectd.Values().dispatch(values=[1])", ("RuntimeError", "type not set")),
        (
            "collectd.Values(type='if_octets').dispatch(values=[1])",
            ("RuntimeError", "type if_octets needs 2 values, got 1"),
        ),
        (
            "collectd.Values(type='gauge').dispatch(values=5)",
            ("TypeError", "values must be list or tuple"),
        ),
        (
            "collectd.Values(type='gauge').dispatch(values=['abc'])",
            ("ValueError", "could not convert string to float: 'abc'"),
        ),
        (
            "collectd.Values(type='gauge').dispatch(values=[None])",
            ("TypeError", "float() argument must be a string or a real number, not 'NoneType'"),
        ),
        (
            "collectd.Values(type='counter').dispatch(values=[-5])",
            ("OverflowError", "can't convert negative int to unsigned"),
        ),
        (
            "collectd.Values(type='counter').dispatch(values=[2**64])",
            ("OverflowError", "int too big to convert"),
        ),
        (
            "collectd.Values(type='derive').dispatch(values=[2**63])",
            ("OverflowError", "int too big to convert"),
        ),
        (
            "collectd.Values(type='derive').dispatch(values=[float('nan')])",
            ("ValueError", "cannot convert float NaN to integer"),
        ),
        (
            "collectd.Values(type='gauge').dispatch(values=[1], meta=5)",
            ("TypeError", "meta must be a dict"),
        ),
        (
            "collectd.Values(type='gauge').dispatch(foo=5)",
            ("TypeError", "'foo' is an invalid keyword argument for this function"),
        ),
        (
            "setattr(collectd.Values(), 'foo', 5)",
            ("AttributeError", "'Values' object has no attribute 'foo'"),
        ),
        ("collectd.Values(time='5')", ("TypeError", "must be real number, not str")),
        (
            "collectd.Notification(severity='a')",
            ("TypeError", "'str' object cannot be interpreted as an integer"),
        ),
        ("delattr(collectd.Values(), 'plugin')", ("TypeError", "Cannot delete this attribute")),
        ("collectd.Notification(message='a').dispatch()", ("RuntimeError", "type not set")),
        (
            "collectd.Values(type='gauge', values=[1]).write('probe')",
            ("RuntimeError", "error dispatching values, read the logs"),
        ),
        (
            "collectd.unregister_read('python.nope')",
            ("RuntimeError", "Unable to unregister read callback 'python.nope'."),
        ),
        (
            "collectd.unregister_init(3)",
            (
                "TypeError",
                "This function needs a string or a callable object as its only parameter.",
            ),
        ),
    ],
)
def test_the_module_answers_as_collectd_does(load: Load, body: str, expected: object) -> None:
    it = load(attempted(body))
    it.gather()
    assert seen() == [expected]


@pytest.mark.parametrize("value", ["5", "None", "[]"])
def test_a_name_that_is_no_text_is_a_type_error(load: Load, value: str) -> None:
    load(attempted(f"collectd.Values(plugin_instance={value})")).gather()
    assert seen()[0][0] == "TypeError"


def test_closing_takes_the_modules_and_collectd_out_of_python(load: Load) -> None:
    path = list(sys.path)
    it = load("collectd.register_read(print)")
    it.gather()
    assert "spam" in sys.modules
    it.close()
    assert "spam" not in sys.modules
    assert "collectd" not in sys.modules
    assert sys.path == path


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


def test_a_configuration_that_nobody_takes_is_said(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    load("collectd.register_read(print)", modules={"spam": {"Key": 1}}).gather()
    assert "spam: it has a configuration, but registered no config callback" in caplog.text


def test_without_modules_there_is_nothing_to_read(clock: FrozenClock) -> None:
    plugin = CollectdPythonPlugin(CollectdPythonConfig(), PluginContext(), clock=clock)
    with pytest.raises(PluginUnavailableError, match="no modules"):
        plugin.gather(datetime.fromisoformat("2026-03-01T12:00:00+00:00"))
    plugin.close()


def test_only_with_modules_a_child_process_is_worth_its_cost() -> None:
    context = PluginContext()
    assert not CollectdPythonConfig().needs_child(context)
    assert CollectdPythonConfig(modules={"spam": {}}).needs_child(context)
    assert CollectdPythonConfig(imports=("spam",)).needs_child(context)

"""The module `collectd`: what its functions and classes do, and how they answer."""

import sys

import pytest

from tests.unit.plugins.loaded_modules import Load, attempted, load, seen

__all__ = ["load"]


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
    levels = [
        record.levelname for record in caplog.records if record.message.endswith("spam: 100%s")
    ]
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


def test_callbacks_can_be_unregistered(load: Load) -> None:
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


def test_a_read_function_with_a_registered_name_is_rejected_with_a_warning(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    it = load("""
    collectd.register_read(lambda: seen.append(1))
    collectd.register_read(lambda: seen.append(2))
    """)
    it.gather()
    assert seen() == [1]
    assert 'The read function "python.spam" is already registered' in caplog.text


# These are the answers of collectd 5.12, taken from a run of it.
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

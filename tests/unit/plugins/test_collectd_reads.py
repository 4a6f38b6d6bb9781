"""Read callbacks of modules written for collectd: when they are called, and what may go wrong."""

import sys
import threading

import pytest

from plugins.collectd_python import daemon as daemon_module
from plugins.collectd_python import reader as reader_module
from tests.unit.plugins.loaded_modules import Load, load, seen

__all__ = ["load"]


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


def test_tracebacks_can_be_omitted(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load("collectd.register_read(lambda: 1 / 0)", log_traces=False).gather()
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" not in caplog.text


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

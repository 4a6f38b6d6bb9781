"""Values with units as people read them, and errors that know their status."""

import logging

import pytest

from core.errors import ConfigurationError, NotFoundError, OverloadedError, VedetteError
from core.logs import configure_logging
from core.units import format_value, unit_of


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("temperature_celsius", 71.0, "71 °C"),
        ("temperature_celsius", 71.25, "71.2 °C"),
        ("used_percent", 100.0, "100 %"),
        ("used_bytes", 12.4 * 2**30, "12.4 GiB"),
        ("used_bytes", 1023.0, "1023 B"),
        ("sent_bytes_per_second", 1536.0, "1.5 KiB/s"),
        ("reads_per_second", 12_000.0, "12 k/s"),
        ("sm_clock_hertz", 1.98e9, "2.0 GHz"),
        ("power_watts", 699.6, "700 W"),
        ("load1", 0.5, "0.5"),
        ("throttled", 1.0, "1"),
    ],
)
def test_a_value_is_read_with_its_unit(field: str, value: float, text: str) -> None:
    assert format_value(field, value) == text


def test_the_longest_suffix_says_the_unit() -> None:
    assert unit_of("received_bytes_per_second").symbol == "B/s"


def test_every_error_has_its_own_status_and_code() -> None:
    kinds = [k for k in VedetteError.__subclasses__() if k.__module__ == "core.errors"]
    codes = {(k.status, k.default_code) for k in kinds}
    assert len(codes) == len(kinds)


def test_a_missing_object_is_named_with_its_kind() -> None:
    error = NotFoundError.of("job", "j1")
    assert (error.status, error.code) == (404, "not_found")
    assert "no job 'j1' here" in error.message


def test_overload_says_when_to_come_back() -> None:
    assert OverloadedError("Too much.", retry_after_seconds=7).retry_after_seconds == 7


def test_configuration_faults_are_listed() -> None:
    error = ConfigurationError(["a is wrong", "b is wrong"], source="x.toml")
    assert error.message == "x.toml has 2 faults:\n  - a is wrong\n  - b is wrong"


def test_log_lines_carry_time_level_process_and_logger(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure_logging(process="portal")
        logging.getLogger("x.y").info("hello")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    line = capsys.readouterr().err
    assert line.endswith("INFO    portal x.y: hello\n")
    assert line[:20].endswith("Z")

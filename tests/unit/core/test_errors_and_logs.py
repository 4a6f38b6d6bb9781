"""Errors that know their status, and log lines."""

import logging

import pytest

from core.errors import ConfigurationError, NotFoundError, OverloadedError, VedetteError
from core.logs import configure_logging


def test_every_error_has_its_own_status_and_code() -> None:
    kinds = [k for k in VedetteError.__subclasses__() if k.__module__ == "core.errors"]
    codes = {(k.status, k.default_code) for k in kinds}
    assert len(codes) == len(kinds)


def test_a_missing_object_is_named_with_its_kind() -> None:
    error = NotFoundError.of("job", "j1")
    assert (error.status, error.code) == (404, "not_found")
    assert "no job 'j1'" in error.message


def test_overload_says_when_to_come_back() -> None:
    assert OverloadedError("Too much.", retry_after_seconds=7).retry_after_seconds == 7


def test_configuration_errors_are_listed() -> None:
    error = ConfigurationError(["a is wrong", "b is wrong"], source="x.toml")
    assert error.message == "x.toml has 2 errors:\n  - a is wrong\n  - b is wrong"


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

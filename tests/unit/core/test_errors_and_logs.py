"""Errors that know their status, and log lines."""

import logging

import pytest

from core.errors import ConfigurationError, NotFoundError, OverloadedError, VedetteError
from core.logs import REPEAT_SECONDS, RepeatFilter, configure_logging


def test_every_error_has_its_own_status_and_code() -> None:
    kinds = [k for k in VedetteError.__subclasses__() if k.__module__ == "core.errors"]
    codes = {(k.status, k.default_code) for k in kinds}
    assert len(codes) == len(kinds)


def test_a_missing_object_is_named_with_its_kind() -> None:
    error = NotFoundError.of("job", "j1")
    assert (error.status, error.code) == (404, "not_found")
    assert "no job 'j1'" in error.message


def test_overload_has_a_retry_after() -> None:
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


def test_a_repeated_line_is_logged_once_a_minute_with_the_number_left_out() -> None:
    repeats = RepeatFilter()

    def logged(text: str, *args: object, at: float, error: bool = False) -> str | None:
        exc_info = (ValueError, ValueError(), None) if error else None
        record = logging.LogRecord("uvicorn.error", logging.INFO, "", 0, text, args, exc_info)
        record.created = at
        return record.getMessage() if repeats.filter(record) else None

    assert logged("from %s", "a", at=0) == "from a"
    assert [logged("from %s", name, at=1) for name in "bcd"] == [None] * 3
    assert logged("another", at=2) == "another"
    assert logged("from %s", "e", at=REPEAT_SECONDS) == "from e (3 more since this was last logged)"
    assert [logged("failed", at=3, error=True) for _ in range(2)] == ["failed"] * 2

"""Logs as JSON, with the ids of the request that is being answered."""

import contextvars
import json
import logging

from core.json_logs import json_formatter
from core.request_notes import JOB_ID, ROUTE, begin_request, note

RECORD = logging.LogRecord("x.y", logging.WARNING, "", 0, "%s is ü", ("this",), None)


def test_a_line_is_an_object_with_time_level_process_and_logger() -> None:
    line = json.loads(json_formatter("server").format(RECORD))
    assert line.pop("timestamp").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "process": "server",
        "logger": "x.y",
        "message": "this is ü",
    }


def test_lines_of_a_request_have_its_ids() -> None:
    def formatted() -> dict[str, str]:
        begin_request("abc-1")
        note(JOB_ID, "a job")
        note(ROUTE, "/jobs")
        record = logging.makeLogRecord(RECORD.__dict__)
        line: dict[str, str] = json.loads(json_formatter("server").format(record))
        return line

    line = contextvars.copy_context().run(formatted)
    assert (line["request_id"], line["job_id"]) == ("abc-1", "a job")
    assert "route" not in line


def test_a_traceback_is_in_the_object() -> None:
    error = ValueError("no")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, (ValueError, error, None))
    line = json_formatter("server").format(record)
    assert "\n" not in line
    assert "ValueError: no" in json.loads(line)["exc_info"]

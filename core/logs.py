"""Logging to standard error, a line for each event: `time level process logger message` or JSON."""

import logging
import math
import sys
import time

REPEAT_SECONDS = 60.0


def configure_logging(
    level: str = "INFO", *, process: str = "vedette", log_format: str = "text"
) -> None:
    """Send all loggers to standard error in one format, `text` or `json`, in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(log_format, process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("apscheduler", "urllib3", "alembic", "httpx", "docker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _formatter(log_format: str, process: str) -> logging.Formatter:
    if log_format == "json":
        from core.json_logs import json_formatter  # noqa: PLC0415 - only servers have it

        return json_formatter(process)
    formatter = logging.Formatter(
        f"%(asctime)s %(levelname)-7s {process} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
    )
    formatter.converter = time.gmtime
    return formatter


class RepeatFilter(logging.Filter):
    """Logs each wording once a minute, with the number of records that were left out since.

    For loggers that clients can make write as often as they send. Records with a traceback pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        if record.exc_info:
            return True
        wording = str(record.msg)
        logged_at, left_out = self._logged.get(wording, (-math.inf, 0))
        if record.created - logged_at < REPEAT_SECONDS:
            self._logged[wording] = (logged_at, left_out + 1)
            return False
        self._logged[wording] = (record.created, 0)
        if left_out:
            record.msg = f"{wording} ({left_out} more since this was last logged)"
        return True

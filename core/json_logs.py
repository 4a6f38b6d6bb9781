"""Log records as JSON, one object a line, for programs that collect logs."""

import logging

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from core.request_notes import ROUTE, request_notes


def json_formatter(process: str) -> logging.Formatter:
    """Return a formatter that adds the process, and what is known of the current request."""
    return _RequestFormatter(
        "{levelname}{name}{message}",
        style="{",
        rename_fields={"levelname": "level", "name": "logger"},
        static_fields={"process": process},
        timestamp=True,
        # uvicorn writes its message once more for terminals.
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],
    )


class _RequestFormatter(JsonFormatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; the route is a label of metrics."""
        for name, value in request_notes().items():
            if name != ROUTE and not hasattr(record, name):
                setattr(record, name, value)
        return super().format(record)

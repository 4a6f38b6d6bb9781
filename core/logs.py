"""Logging to standard error: one line for each event, `time level process logger message`."""

import logging
import sys
import time


def configure_logging(level: str = "INFO", *, process: str = "vedette") -> None:
    """Send all loggers to standard error in one format, in UTC."""
    formatter = logging.Formatter(
        f"%(asctime)s %(levelname)-7s {process} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("apscheduler", "urllib3", "alembic", "httpx", "docker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

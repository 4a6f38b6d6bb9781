"""Files with the output of attempts: their names and their bound."""

import re
from pathlib import Path

from jobqueue.executors.base import ExecutorError

SPOOL_LIMIT_BYTES = 16 * 1024 * 1024
TRUNCATION_NOTICE = b"\n[Output truncated: the appliance's log limit was reached.]\n"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def safe_path(folder: Path, attempt_id: str, suffix: str) -> Path:
    """Return the file of an attempt; raise `ExecutorError` for an invalid id."""
    if not _SAFE_NAME.fullmatch(attempt_id):
        raise ExecutorError(f"{attempt_id!r} is not an attempt id")
    return folder / f"{attempt_id}{suffix}"

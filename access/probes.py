"""Probes: can the server store what it acknowledges? Each raises what is wrong, and takes little.

`/health` runs them at most once a second; `/readyz` has others, too (`serving.probes`).
"""

import os
import tempfile
from datetime import datetime
from pathlib import Path

from core.db import SessionFactory, transaction
from core.errors import UnavailableError
from core.leases import acquire_lease
from core.quantities import format_size
from timeseries.store import Store, check_store

# Below it, a commit or the file of a log may fail any moment.
MIN_FREE_BYTES = 2**20
_LEASE = "health"


class DiskUnavailableError(UnavailableError):
    """Nothing can be written to a folder: its disk is full, over quota or read-only."""

    default_code = "disk_unavailable"
    retry_after_seconds = 30.0


def probe_database(sessions: SessionFactory, *, now: datetime) -> None:
    """Write a row of the database: reads may succeed while its disk is full.

    Raises:
        DatabaseUnavailableError: it does not answer, or can't be written.
    """
    with transaction(sessions) as session:
        acquire_lease(session, _LEASE, holder="probe", now=now, duration=now - now)


def probe_store(store: Store) -> None:
    """Read from the store of samples.

    Raises:
        StoreUnavailableError: it does not answer.
    """
    check_store(store)


def probe_writing(folder: Path) -> None:
    """Reserve some space in a folder, in a file without a name, and release it.

    Raises:
        DiskUnavailableError: there is less, or the folder can't be written.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, MIN_FREE_BYTES)
    except OSError as error:
        raise DiskUnavailableError(
            f"Less than {format_size(MIN_FREE_BYTES)} can be written to {folder}: "
            f"{error.strerror}. Free space, or make it writable. What agents have not delivered "
            "is retained on the appliances."
        ) from error

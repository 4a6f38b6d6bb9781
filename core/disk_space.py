"""Free space of the disks that a server writes to."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# SQLite, DuckDB and their logs need some room to commit what has arrived, and to move it to files.
MIN_FREE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The size of the disk of a folder, and what the server's user may still write."""

    total_bytes: int
    free_bytes: int

    @property
    def is_low(self) -> bool:
        """Return whether writes will fail soon."""
        return self.free_bytes < MIN_FREE_BYTES


def disk_space(folder: Path) -> DiskSpace:
    """Return the space of the disk that a folder is on, or will be.

    Raises:
        OSError: it can't be read.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return DiskSpace(usage.total, usage.free)


def can_write(folder: Path) -> bool:
    """Return whether this user can create files in a folder; writes and deletes one."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        probe.write_bytes(b"probe")
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True

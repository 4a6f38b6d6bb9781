"""Where equal files are in the cache, so that a new version links them: a hint that may be lost."""

import logging
import sqlite3
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from threading import RLock

from protocol.datasets import PART_BYTES, ManifestFile, ManifestPage

log = logging.getLogger(__name__)

_QUERY_KEYS = 500


class EqualFiles:
    """Finds a cached file with the same content. What it lacks is only fetched again.

    Thread-safe. SQLite without waits for the disk: a damaged file is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = RLock()
        self._database: sqlite3.Connection | None = None

    def paths_of(self, keys: Sequence[bytes]) -> dict[bytes, str]:
        """Return where files are, by their keys of `key_of`, below `versions`."""
        paths: dict[bytes, str] = {}
        try:
            with self._lock:
                database = self._open()
                for begin in range(0, len(keys), _QUERY_KEYS):
                    asked = keys[begin : begin + _QUERY_KEYS]
                    marks = ",".join("?" * len(asked))
                    paths.update(
                        database.execute(
                            f"SELECT key, path FROM equal WHERE key IN ({marks})",  # noqa: S608
                            asked,
                        )
                    )
        except sqlite3.Error as error:
            self._reset(error)
        return paths

    def is_empty(self) -> bool:
        """Return whether no file is listed."""
        try:
            with self._lock:
                return self._open().execute("SELECT 1 FROM equal LIMIT 1").fetchone() is None
        except sqlite3.Error as error:
            self._reset(error)
            return True

    def add(self, version_id: str, page: ManifestPage) -> None:
        """Store where the files of a page of a version are."""
        rows = [
            (key_of(page, file), f"{version_id}/files/{file.path}")
            for file in page.files
            if file.size_bytes
        ]
        try:
            with self._lock:
                database = self._open()
                database.executemany("INSERT OR REPLACE INTO equal VALUES (?, ?)", rows)
                database.commit()
        except sqlite3.Error as error:
            self._reset(error)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            database = sqlite3.connect(self._path, check_same_thread=False)
            database.execute("PRAGMA journal_mode=MEMORY")
            database.execute("PRAGMA synchronous=OFF")
            database.execute(
                "CREATE TABLE IF NOT EXISTS equal (key BLOB PRIMARY KEY, path TEXT) WITHOUT ROWID"
            )
            self._database = database
        return self._database

    def _reset(self, error: sqlite3.Error) -> None:
        log.warning("the index %s of equal files is made anew: %s", self._path, error)
        with self._lock:
            self.close()
            self._path.unlink(missing_ok=True)


def key_of(page: ManifestPage, file: ManifestFile) -> bytes:
    """Return what equal files share: content, by hashes that were checked, and mode."""
    digest = file.sha256
    if file.size_bytes > PART_BYTES:  # its parts were checked, not the whole
        count = -(-file.size_bytes // PART_BYTES)
        parts = page.parts[file.part : file.part + count]
        digest = sha256(b"".join(part.sha256 for part in parts)).digest()
    return digest + (b"x" if file.is_executable else b"-")

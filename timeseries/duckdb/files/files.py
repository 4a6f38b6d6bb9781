"""The place of the Parquet files of segments: a folder, or a bucket; see `s3`.

Paths are relative, like those in the manifest. Files never change.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from core.atomic_files import replacing, sync_folder
from timeseries.duckdb.files.layout import GLOBS
from timeseries.store import StoreUnavailableError

OWNER = "owner"
"""The name of the file that says which database a folder or bucket belongs to."""


class Files(Protocol):
    """The files of a store.

    Attributes:
        place: the folder or address, for messages.
        allowed: the prefixes of what DuckDB may read.
        filesystem: what DuckDB reads them with; None for local files.
        is_open: whether new files are in the open layout; see `layout`.
    """

    place: str
    allowed: list[str]
    filesystem: Any
    is_open: bool

    def address(self, path: str) -> str:
        """Return what DuckDB reads a file by."""

    def create(self, path: str) -> Path:
        """Create an empty local file to write to, and return it."""

    def publish(self, new: Path, path: str) -> None:
        """Move a complete file, created before, to its path: whole, durable, or not at all."""

    def discard(self, new: Path, path: str) -> None:
        """Delete a file that was created and is not worth publishing."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file that other programs read, in place of the one there, as a whole."""

    def content(self, path: str) -> bytes:
        """Return what `replace` wrote.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def abandon(self) -> None:
        """Delete what this thread has created and not published."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing ones are no error."""

    def list_paths(self) -> set[str]:
        """Return the paths of all files, after removing incomplete ones; at the start."""

    def claim(self, owner: str) -> None:
        """Reserve the place for one database.

        Raises:
            StoreUnavailableError: it is another's.
        """


class LocalFiles:
    """Files in a folder."""

    def __init__(self, folder: Path, *, is_open: bool = False) -> None:
        self._folder = folder
        self.is_open = is_open
        self._lock = threading.Lock()
        self._created: dict[Path, int] = {}
        self.place = str(folder)
        self.allowed = [f"{folder.resolve()}/"]
        self.filesystem = None

    def address(self, path: str) -> str:
        """Return the file's name."""
        return str(self._folder / path)

    def create(self, path: str) -> Path:
        """Create it, and its folders, under a temporary name."""
        file = self._folder / f"{path}.new"
        with self._lock:  # nothing deletes its folder before the file is in it
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        self._created[file] = threading.get_ident()
        return file

    def publish(self, new: Path, path: str) -> None:
        """Give it its name, in folders that survive a power failure too."""
        file = self._folder / path
        new.rename(file)
        self._created.pop(new, None)
        for folder in list(file.parents)[: len(Path(path).parents)]:
            sync_folder(folder)

    def discard(self, new: Path, path: str) -> None:
        """Delete it, and folders without any."""
        self._created.pop(new, None)
        with self._lock:
            self._delete(new, path)

    def replace(self, path: str, content: bytes) -> None:
        """Replace a small file; a power failure may lose it, and the next start writes it anew."""
        file = self._folder / path
        with self._lock:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file, mode=0o666, is_durable=False) as new:
                new.write(content)

    def content(self, path: str) -> bytes:
        """Return what `replace` wrote."""
        return (self._folder / path).read_bytes()

    def abandon(self) -> None:
        """Delete what this thread has created and not published."""
        for file, thread in list(self._created.items()):
            if thread == threading.get_ident():
                file.unlink(missing_ok=True)
                del self._created[file]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, and folders without any."""
        with self._lock:
            for path in paths:
                self._delete(self._folder / path, path)

    def _delete(self, file: Path, path: str) -> None:
        file.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            for folder in list(file.parents)[: len(Path(path).parents) - 1]:
                folder.rmdir()

    def list_paths(self) -> set[str]:
        """Return the paths of all files."""
        paths = set[str]()
        for pattern in GLOBS:
            for file in self._folder.glob(f"{pattern}.new"):
                file.unlink()
            paths |= {
                file.relative_to(self._folder).as_posix() for file in self._folder.glob(pattern)
            }
        return paths

    def claim(self, owner: str) -> None:
        """Reserve the folder for one database."""
        file = self._folder / OWNER
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), file.open("x", encoding="utf-8") as new:
                new.write(owner)
            stored_owner = file.read_text(encoding="utf-8")
        except OSError as error:
            raise StoreUnavailableError(
                f"Can't use {self.place} for files of samples: {error}. Set another folder as "
                "`files` in TIMESERIES_URL, or make it writable."
            ) from error
        check_owner(self.place, stored_owner, owner)


def check_owner(place: str, stored_owner: str, owner: str) -> None:
    """Raise `StoreUnavailableError` if a place belongs to another database."""
    if stored_owner != owner:
        raise StoreUnavailableError(
            f"{place} has the samples of another database. Use another folder or prefix for each, "
            f"or restore the database that belongs to it. If it is gone, delete {place}/{OWNER}."
        )

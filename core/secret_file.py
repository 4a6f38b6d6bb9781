"""Secrets that a server generates once and stores in its data folder."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def load_or_create_secret(path: Path, make: Callable[[], str]) -> str:
    """Return the file's content; if it does not exist, store what `make` returns.

    Of several concurrent processes one creates it, and all return the same. Only the owner can
    read it.
    """
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _written(path.parent, f"{make()}\n")
    try:
        # Unlike a rename, a link does not replace a file that another process created.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    _sync(path.parent)
    return path.read_text(encoding="utf-8")


def _written(folder: Path, text: str) -> Path:
    """Return a new file with the text, synced and readable by the owner only."""
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Secrets that a server makes for itself once, and keeps in a file of its data folder."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def kept_secret(path: Path, make: Callable[[], str]) -> str:
    """Return what the file holds; where it is not there yet, keep what `make` returns.

    Of several processes that come first at the same moment one makes it, and all return that one's.
    Only the owner can read the file.
    """
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _written(path.parent, f"{make()}\n")
    try:
        # A link, unlike a rename, does not replace what somebody else put there meanwhile, and what
        # it puts there is whole.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    _sync(path.parent)
    return path.read_text(encoding="utf-8")


def _written(folder: Path, text: str) -> Path:
    """Return a new file with the text, on disk and for the owner alone."""
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

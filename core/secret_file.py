"""Secrets that a server generates once and stores in its data folder."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.atomic_files import replace_file, sync_folder
from core.ids import new_id


def load_or_create_secret(path: Path, make: Callable[[], str]) -> str:
    """Return the file's content; if it does not exist, store what `make` returns.

    Of several concurrent processes one creates it, and all return the same. Only the owner can
    read it.
    """
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    draft = path.with_name(f".{path.name}.{new_id()}")
    replace_file(draft, f"{make()}\n".encode())
    try:
        # Unlike a rename, a link does not replace a file that another process created.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    sync_folder(path.parent)
    return path.read_text(encoding="utf-8")

"""Folders into which a backup is fetched, and which are deleted, if need be by the next process."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.ids import new_id

_SCRATCH = re.compile(r"restore-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Give an empty folder to fetch a backup into, and delete it after the block.

    Those of processes that were killed, each as large as a backup, are deleted first.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in parent.iterdir():
        if _SCRATCH.fullmatch(path.name):
            with suppress(OSError), _locked(path):
                shutil.rmtree(path)
    folder = parent / f"restore-{new_id()}"
    folder.mkdir(mode=0o700)
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder in the block; raises OSError if another process has."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)

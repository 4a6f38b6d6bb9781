"""Files that are replaced as a whole: after a crash, the old or the new content is there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from core.ids import new_id


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces the one at `path` unless the block fails.

    Args:
        path: the file to replace or create; its folder exists.
        mode: the permissions before the process's mask; the default is for the owner only.
        is_durable: False saves the wait for the disk, where a power failure may lose the content.

    Raises:
        OSError: it can't be written; the old file is unchanged.
    """
    draft = path.with_name(f".{path.name}.{new_id()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Replace a file, or create it and its folder, readable by its owner only.

    Raises:
        OSError: it can't be written; the old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, is_durable=is_durable) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Make what was created in a folder or renamed into it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

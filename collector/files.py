"""Small files that are never seen half written."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` so that a crash leaves the old file or the new one.

    Raises:
        OSError: the folder can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)

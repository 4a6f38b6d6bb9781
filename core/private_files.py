"""Files that only their owner may open: data folders contain credentials and personal data."""

import logging
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

UMASK = 0o077
# Folders of the system: taking them from other users would break the host.
_SYSTEM_FOLDERS = frozenset(
    map(Path, ("/", "/etc", "/home", "/media", "/mnt", "/opt", "/run", "/srv", "/usr", "/var"))
) | {Path("/var/lib"), Path("/var/log")}


def create_files_privately() -> None:
    """Let this process and its children create files with mode 0600 and folders with 0700."""
    os.umask(UMASK)


def make_private(folder: Path, *, shared: Collection[str] = ()) -> None:
    """Create a data folder, or take an existing one and all in it from group and others.

    Files of other users, links and mounts in it remain as they are, and so does what is below the
    folders named in `shared`, which containers use: only they themselves are private.

    Raises:
        OSError: it can't be created, or the system or all users share it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if folder.resolve() in _SYSTEM_FOLDERS or status.st_mode & stat.S_ISVTX:
        raise PermissionError(0, "other programs use it, too; choose a folder of its own")
    changed = int(_tighten(folder))
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        folders[:] = [name for name in folders if not os.path.ismount(here / name)]
        changed += sum(_tighten(here / name) for name in (*folders, *files))
        if here == folder:
            folders[:] = [name for name in folders if name not in shared]
    if changed:
        log.warning("%s: removed the permissions of other users on %d paths", folder, changed)


def _tighten(path: Path) -> bool:
    """Remove the permissions of group and others; return whether there were any."""
    with suppress(FileNotFoundError):  # a file that its process has deleted meanwhile
        status = path.lstat()
        is_ours = status.st_uid == os.geteuid()
        if is_ours and not stat.S_ISLNK(status.st_mode) and status.st_mode & UMASK:
            path.chmod(stat.S_IMODE(status.st_mode) & ~UMASK)
            return True
    return False

"""The table of mounted file systems (`/proc/self/mountinfo`), and which of them count.

A file system is *local* when a disk of this host holds it, *remote* when another machine or a
program answers for it; all others live in memory and have no space to run out of.

Source: proc_pid_mountinfo(5).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from plugins.base import matches_any

REMOTE_TYPES = frozenset(
    b"9p afs beegfs ceph cifs fhgfs fuse gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 smb3 smbfs"
    b" virtiofs wekafs".split()
)
ROOTLESS_LOCAL_TYPES = frozenset({b"zfs"})  # its devices are data sets, not paths
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_WHOLE = b"/"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system where it is mounted; `path` is what to ask, the texts are for people."""

    path: bytes
    mount: str
    device: str
    file_system: str
    is_remote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFilter:
    """Shell patterns of what is left out."""

    skip_devices: tuple[str, ...]
    skip_file_systems: tuple[str, ...]
    skip_mounts: tuple[str, ...]
    has_remote: bool

    def takes(self, mount: Mount) -> bool:
        """Return whether a file system is to be read."""
        return not (
            (mount.is_remote and not self.has_remote)
            or matches_any(mount.device, self.skip_devices)
            or matches_any(mount.file_system, self.skip_file_systems)
            or matches_any(mount.mount, self.skip_mounts)
        )


def wanted_mounts(mountinfo: bytes, wanted: MountFilter) -> list[Mount]:
    """Return the file systems to read, sorted by mount point, each once.

    Of a file system that is mounted more than once the mount of its whole tree counts rather than
    that of a folder in it, then the shortest mount point.
    """
    best: dict[bytes, tuple[tuple[bool, int, bytes], Mount]] = {}
    for number, is_part, mount in _visible(mountinfo.splitlines()):
        rank = (is_part, len(mount.path), mount.path)
        if wanted.takes(mount) and (number not in best or rank < best[number][0]):
            best[number] = (rank, mount)
    return sorted((mount for _, mount in best.values()), key=lambda mount: mount.path)


def _visible(lines: Iterable[bytes]) -> Iterable[tuple[bytes, bool, Mount]]:
    """Return device number, whether it is a part only, and mount; a later one hides an earlier."""
    found = {}
    for line in lines:
        left, _, right = line.partition(b" - ")
        _, _, number, root, path, *_ = left.split(b" ")
        kind, source, *_ = right.split(b" ")
        is_remote = kind in REMOTE_TYPES or kind.startswith(b"fuse.")
        is_local = source.startswith(b"/dev/") or kind in ROOTLESS_LOCAL_TYPES
        mount = Mount(_unescaped(path), _text(path), _text(source), _text(kind), is_remote)
        counts = (is_remote or is_local) and _is_tag(mount.mount) and _is_tag(mount.device)
        found[path] = (number, root != _WHOLE, mount) if counts else None
    return [entry for entry in found.values() if entry]


def _is_tag(text: str) -> bool:
    """Return whether line protocol can hold it as a tag's value."""
    return bool(text) and "\n" not in text and not text.endswith("\\")


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), text)


def _text(escaped: bytes) -> str:
    return _unescaped(escaped).decode(errors="replace")

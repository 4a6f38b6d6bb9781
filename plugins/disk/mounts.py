"""Mounted file systems (`/proc/self/mountinfo`), and reading remote ones without blocking.

A file system is *local* if it is on a disk of this host, *remote* if another host or a program
serves it. All others are in memory and are not read.

Source: proc_pid_mountinfo(5).
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread

REMOTE_TYPES = frozenset(
    b"9p afs beegfs ceph cifs fhgfs fuse gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 smb3 smbfs"
    b" virtiofs wekafs".split()
)
ROOTLESS_LOCAL_TYPES = frozenset({b"zfs"})  # devices are data sets, not paths
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_WHOLE = b"/"


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system; `path` is for system calls, the texts are for display."""

    path: bytes
    mount: str
    device: str
    file_system: str
    is_remote: bool


def wanted_mounts(mountinfo: bytes, is_wanted: Callable[[Mount], bool]) -> list[Mount]:
    """Return the file systems to read, each once, sorted by mount point.

    If a file system has several mounts, prefer a mount of its root, then the shortest mount point.
    """
    best: dict[bytes, tuple[tuple[bool, int, bytes], Mount]] = {}
    for number, is_part, mount in _visible(mountinfo.splitlines()):
        rank = (is_part, len(mount.path), mount.path)
        if is_wanted(mount) and (number not in best or rank < best[number][0]):
            best[number] = (rank, mount)
    return sorted((mount for _, mount in best.values()), key=lambda mount: mount.path)


def _visible(lines: Iterable[bytes]) -> Iterable[tuple[bytes, bool, Mount]]:
    """Return device number, whether only a subtree is mounted, and mount, without hidden ones."""
    mounts = {}
    for line in lines:
        left, _, right = line.partition(b" - ")
        _, _, number, root, path, *_ = left.split(b" ")
        kind, source, *_ = right.split(b" ")
        is_remote = kind in REMOTE_TYPES or kind.startswith(b"fuse.")
        is_local = source.startswith(b"/dev/") or kind in ROOTLESS_LOCAL_TYPES
        mount = Mount(_unescaped(path), _text(path), _text(source), _text(kind), is_remote)
        counts = (is_remote or is_local) and _is_tag(mount.mount) and _is_tag(mount.device)
        mounts[path] = (number, root != _WHOLE, mount) if counts else None
    return [entry for entry in mounts.values() if entry]


def _is_tag(text: str) -> bool:
    """Return whether it is a valid tag value in line protocol."""
    return bool(text) and "\n" not in text and not text.endswith("\\")


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), text)


def _text(escaped: bytes) -> str:
    return _unescaped(escaped).decode(errors="replace")


StatVFS = Callable[[bytes], os.statvfs_result]


class RemoteReader:
    """Reads remote mounts in one thread, plus one for each stuck mount."""

    def __init__(self, *, wait_seconds: float, statvfs: StatVFS = os.statvfs) -> None:
        self._wait_seconds = wait_seconds
        self._statvfs = statvfs
        self._worker: _Worker | None = None
        self._stuck: dict[bytes, _Worker] = {}

    @property
    def stuck(self) -> list[bytes]:
        """Mount points whose server does not answer."""
        return sorted(path for path, worker in self._stuck.items() if worker.thread.is_alive())

    def read(self, paths: Sequence[bytes]) -> dict[bytes, os.statvfs_result]:
        """Return the results that arrive in time, by mount point."""
        stuck = self.stuck
        self._stuck = {path: self._stuck[path] for path in stuck}
        asked = [path for path in paths if path not in self._stuck]
        if not asked:
            return {}
        if self._worker is None:
            self._worker = _Worker(self._statvfs)
        task = _Task(asked)
        self._worker.tasks.put(task)
        if not task.is_done.wait(self._wait_seconds):
            task.is_abandoned = True
            self._stuck[task.current] = self._worker
            self.close()
        return dict(task.found)

    def close(self) -> None:
        """Stop the thread; threads of stuck mounts end when their server answers."""
        if self._worker:
            self._worker.tasks.put(None)
            self._worker = None


class _Task:
    """Mounts to read, and the results so far."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self.paths = paths
        self.current = paths[0]
        self.found: dict[bytes, os.statvfs_result] = {}
        self.is_done = Event()
        self.is_abandoned = False


class _Worker:
    def __init__(self, statvfs: StatVFS) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._statvfs = statvfs
        self.thread = Thread(target=self._run, name="remote-mounts", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (task := self.tasks.get()) is not None:
            for path in task.paths:
                if task.is_abandoned:
                    break
                task.current = path
                try:
                    task.found[path] = self._statvfs(path)
                except OSError:  # unmounted meanwhile, or no permission
                    continue
            task.is_done.set()

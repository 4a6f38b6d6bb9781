"""The cache: which versions are on the disk, how much they take, and what is removed for others.

    cache_dir/
        versions/VERSION_ID/   see `collector.datasets.version_folder`
        uses/ATTEMPT_ID        the versions that an attempt has mounted, a line each
        trash/                 versions that are being removed
        mounts/                network file systems that are being read
        equal.sqlite3          where equal files are, to link them: a hint, which may be lost

There is no other index: what a killed agent left is read from the folders at the start, where
counts and sizes must be those of the version. The time of `complete.json` is that of the last use.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, RLock

from collector.datasets.equal_files import EqualFiles
from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.nfs import unmount
from collector.datasets.version_folder import VersionFolder, VersionRecord
from core.atomic_files import replace_file
from core.ids import new_id
from core.quantities import format_size

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CachedVersion:
    """A version on the disk.

    Attributes:
        size_bytes: what it takes; a file that versions share counts for the first of them.
        is_complete: whether jobs may mount it.
    """

    folder: VersionFolder
    size_bytes: int = 0
    is_complete: bool = False
    is_pinned: bool = False
    last_used_ns: int = 0
    record: VersionRecord | None = None


@dataclass(slots=True)
class _Reservation:
    total_bytes: int
    written_bytes: int = 0


class Cache:
    """The versions of one appliance. Thread-safe.

    Args:
        folder: where it is.
        max_bytes: its size limit.
        min_free_bytes: what it leaves free on its file system.
        now_ns: the time.

    Attributes:
        creating: held by the thread that creates many small files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        min_free_bytes: int,
        now_ns: Callable[[], int],
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._now_ns = now_ns
        self._lock = RLock()
        self._versions: dict[str, CachedVersion] = {}
        self._reserved: dict[str, _Reservation] = {}
        self._uses: dict[str, list[str]] = {}
        self._order: dict[str, int] = {}
        self.equal = EqualFiles(folder / "equal.sqlite3")
        self.creating = Lock()

    @property
    def mounts(self) -> Path:
        """The folder for network file systems."""
        return self.folder / "mounts"

    @property
    def size_bytes(self) -> int:
        """What all versions take."""
        with self._lock:
            written_bytes = sum(own.written_bytes for own in self._reserved.values())
            return written_bytes + sum(cached.size_bytes for cached in self._versions.values())

    def load(self) -> None:
        """Read the folders, and remove what is in nobody's use.

        Raises:
            OSError: the folder can't be read.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("versions", "uses", "trash", "mounts"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        for mount in self.mounts.iterdir():
            unmount(mount)
        for left in (self.folder / "trash").iterdir():
            shutil.rmtree(left, ignore_errors=True)
        inodes: set[int] = set()
        for path in sorted((self.folder / "versions").iterdir()):
            cached = self._read(VersionFolder(path), inodes)
            with self._lock:
                self._versions[path.name] = cached
        with self._lock:
            for path in (self.folder / "uses").iterdir():
                # A power failure may leave it damaged: a word that is no version has no effect.
                text = path.read_text(encoding="utf-8", errors="replace")
                self._uses[path.name] = text.split()

    def _read(self, folder: VersionFolder, inodes: set[int]) -> CachedVersion:
        record = folder.record()
        usage = _usage(folder.files, inodes)
        taken_bytes = usage.own_bytes + _usage(folder.path / "partial", inodes).own_bytes
        is_complete = record is not None and (usage.file_count, usage.total_bytes) == (
            record.file_count,
            record.total_bytes,
        )
        if record is not None and not is_complete:
            log.warning(
                "the cached version %s is damaged: its files are fetched again", folder.path
            )
            folder.set_incomplete()
        return CachedVersion(
            folder,
            size_bytes=taken_bytes,
            is_complete=is_complete,
            is_pinned=(folder.path / "pinned").exists(),
            last_used_ns=_used_at(folder.path),
            record=record,
        )

    def versions(self) -> Mapping[str, CachedVersion]:
        """Return all versions, by id."""
        with self._lock:
            return dict(self._versions)

    def complete(self, version_id: str) -> CachedVersion | None:
        """Return a version that jobs may mount."""
        with self._lock:
            cached = self._versions.get(version_id)
            return cached if cached is not None and cached.is_complete else None

    def open(self, version_id: str) -> VersionFolder:
        """Return the folder of a version to write to, new if it is not there.

        It is not removed for others until `release`.
        """
        with self._lock:
            self._reserved.setdefault(version_id, _Reservation(0))
            cached = self._versions.get(version_id)
            if cached is None:
                folder = VersionFolder(self.folder / "versions" / version_id)
                cached = CachedVersion(folder, last_used_ns=self._now_ns())
                self._versions[version_id] = cached
            cached.folder.create()
            return cached.folder

    def begin_use(self, attempt_id: str, version_ids: Sequence[str]) -> list[Path] | None:
        """Record that an attempt mounts versions; return their trees, None if any is missing."""
        with self._lock:
            chosen = [self.complete(version_id) for version_id in version_ids]
            trees = [cached.folder.files for cached in chosen if cached is not None]
            if len(trees) < len(chosen):
                return None
            if attempt_id not in self._uses:
                path = self.folder / "uses" / attempt_id
                replace_file(path, "\n".join(version_ids).encode(), is_durable=False)
            self._uses[attempt_id] = list(version_ids)
            for version_id in version_ids:
                self._touch(self._versions[version_id])
            return trees

    def keep_uses(self, attempt_ids: Iterable[str]) -> None:
        """Forget the uses of other attempts."""
        with self._lock:
            for attempt_id in self._uses.keys() - set(attempt_ids):
                for version_id in self._uses.pop(attempt_id):
                    if (cached := self._versions.get(version_id)) is not None:
                        self._touch(cached)
                (self.folder / "uses" / attempt_id).unlink(missing_ok=True)

    def _touch(self, cached: CachedVersion) -> None:
        cached.last_used_ns = self._now_ns()
        with suppress(OSError):
            marker = cached.folder.path / "complete.json"
            os.utime(marker, ns=(cached.last_used_ns, cached.last_used_ns))

    def set_pinned(self, version_ids: Iterable[str]) -> None:
        """Pin these versions, and no others."""
        pinned = set(version_ids)
        with self._lock:
            for version_id, cached in self._versions.items():
                if (should := version_id in pinned) != cached.is_pinned:
                    marker = cached.folder.path / "pinned"
                    cached.is_pinned = should
                    # On a full disk it is pinned until the agent restarts.
                    with suppress(OSError):
                        if should:
                            marker.touch()
                        else:
                            marker.unlink(missing_ok=True)

    def set_order(self, version_ids: Sequence[str]) -> None:
        """Let the first of these take the place of the later ones, and these of no others.

        So versions that are fetched ahead of jobs don't take each other's place by turns.
        """
        with self._lock:
            self._order = {
                version_id: place for place, version_id in enumerate(dict.fromkeys(version_ids))
            }

    def reserve(self, version_id: str, needed_bytes: int, *, name: str) -> None:
        """Make room for what is still missing of a version.

        Raises:
            DataError: it is larger than the cache, or than the disk.
            TemporaryDataError: the rest of the cache is in use now.
        """
        while True:
            with self._lock:
                self.release(version_id)
                self._reserved[version_id] = _Reservation(0)
                whole_bytes = self._versions[version_id].size_bytes + needed_bytes
                if whole_bytes > self.max_bytes:
                    raise DataError(
                        f"{name} has {format_size(whole_bytes)}, more than the cache of this "
                        f"appliance, which is limited to {format_size(self.max_bytes)}. Raise "
                        "cache_max_bytes in [datasets] of its agent.toml, or run the job on an "
                        "appliance with more room."
                    )
                lacking_bytes = self._lacking_bytes(needed_bytes)
                if lacking_bytes <= 0:
                    self._reserved[version_id] = _Reservation(needed_bytes)
                    return
                victim = self._least_recently_used(version_id)
                if victim is None:
                    raise self._no_room(lacking_bytes, needed_bytes, version_id, name)
                grave = self._bury(victim)
            # A million files take a while: jobs start meanwhile.
            shutil.rmtree(grave, ignore_errors=True)

    def _lacking_bytes(self, needed_bytes: int) -> int:
        """Return how much must be removed before this much fits."""
        promised_bytes = sum(own.total_bytes - own.written_bytes for own in self._reserved.values())
        promised_bytes += needed_bytes
        over_bytes = self.size_bytes + promised_bytes - self.max_bytes
        free_bytes = shutil.disk_usage(self.folder).free - self._min_free_bytes
        return max(over_bytes, promised_bytes - free_bytes)

    def _no_room(self, lacking: int, needed_bytes: int, version_id: str, name: str) -> DataError:
        used_bytes = sum(self._versions[own_id].size_bytes for own_id in self._staying(version_id))
        free_bytes = shutil.disk_usage(self.folder).free
        text = (
            f"{name} needs {format_size(needed_bytes)} more, {format_size(lacking)} than there "
            f"is room for: {format_size(used_bytes)} of the cache are in use or pinned, and the "
            f"disk has {format_size(free_bytes)} free, of which "
            f"{format_size(self._min_free_bytes)} stay free. "
        )
        if used_bytes:
            return TemporaryDataError(text + "It is tried again when jobs end.")
        return DataError(text + f"Free space on the disk of {self.folder}.")

    def _staying(self, version_id: str) -> set[str]:
        """Return the versions that are not removed for one, itself included."""
        in_use = {version for versions in self._uses.values() for version in versions}
        order, last = self._order, len(self._order)
        place = order.get(version_id, 0)
        return {
            own_id
            for own_id, cached in self._versions.items()
            if own_id == version_id
            or own_id in in_use
            or own_id in self._reserved
            or cached.is_pinned
            or order.get(own_id, last) < place
        }

    def _least_recently_used(self, version_id: str) -> str | None:
        order, last = self._order, len(self._order)
        # What jobs wait for goes last, and of that the last of the queue first.
        return min(
            self._versions.keys() - self._staying(version_id),
            key=lambda own: (-order.get(own, last), self._versions[own].last_used_ns),
            default=None,
        )

    def add_written(self, version_id: str, size_bytes: int) -> None:
        """Count what was written of a version for which there is room."""
        with self._lock:
            if (own := self._reserved.get(version_id)) is not None:
                own.written_bytes += size_bytes

    def release(self, version_id: str) -> None:
        """End a reservation; what was written stays."""
        with self._lock:
            own, cached = self._reserved.pop(version_id, None), self._versions.get(version_id)
            if own is not None and cached is not None:
                cached.size_bytes += own.written_bytes

    def set_complete(self, version_id: str, record: VersionRecord) -> None:
        """Let jobs mount a version, whose files are all there.

        Raises:
            DataError, OSError: the disk failed.
        """
        folder = self._versions[version_id].folder
        folder.complete(record)
        with self._lock:
            self.release(version_id)
            cached = self._versions[version_id]
            cached.record, cached.is_complete = record, True
            self._touch(cached)

    def remove(self, version_id: str) -> None:
        """Remove a version: by one rename, and then from the disk."""
        with self._lock:
            grave = self._bury(version_id)
        shutil.rmtree(grave, ignore_errors=True)

    def _bury(self, version_id: str) -> Path:
        cached = self._versions.pop(version_id)
        grave = self.folder / "trash" / f"{version_id}-{new_id()}"
        cached.folder.path.rename(grave)
        # What other versions have links to stays on the disk, and counts for one of them.
        heirs = [own for own in self._versions.values() if own.is_complete]
        if heirs:
            heirs[0].size_bytes += min(_shared_bytes(grave / "files"), cached.size_bytes)
        log.info("removed the dataset version %s from the cache", version_id)
        return grave

    def close(self) -> None:
        """Close the index of equal files."""
        self.equal.close()


@dataclass(slots=True)
class _Usage:
    file_count: int = 0
    total_bytes: int = 0
    own_bytes: int = 0
    folders: list[str] = field(default_factory=list)


def _usage(folder: Path, inodes: set[int]) -> _Usage:
    """Return the count and sizes of all files below a folder; a shared one is counted once."""
    usage = _Usage(folders=[str(folder)])
    while usage.folders:
        with suppress(FileNotFoundError), os.scandir(usage.folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    usage.folders.append(entry.path)
                    continue
                state = entry.stat(follow_symlinks=False)
                usage.file_count += 1
                usage.total_bytes += state.st_size
                if state.st_nlink > 1:
                    if state.st_ino in inodes:
                        continue
                    inodes.add(state.st_ino)
                usage.own_bytes += min(state.st_size, state.st_blocks * 512)
    return usage


def _shared_bytes(folder: Path) -> int:
    """Return the size of the files of which there are further links."""
    shared: dict[int, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            state = os.lstat(f"{parent}/{name}")
            if state.st_nlink > 1:
                shared[state.st_ino] = state.st_size
    return sum(shared.values())


def _used_at(path: Path) -> int:
    for name in ("complete.json", "head.json", "."):
        with suppress(OSError):
            return (path / name).stat().st_mtime_ns
    return 0

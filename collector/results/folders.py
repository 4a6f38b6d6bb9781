"""The output folders of attempts on this appliance: `results/ATTEMPT/0`, `1`... in the data folder.

Containers of any user write to them. Beside them, `state.json` says whose they are, and
`files.json` which files were hashed and stored. The next attempt of a job on this appliance gets
the folder of the one before, by renaming it.
"""

import logging
import os
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock

import msgspec

from collector.data_dir import RESULTS_NAME, load_json, save_json
from protocol.attempts import AttemptObservation
from protocol.results import ResultPart

log = logging.getLogger(__name__)

OPEN_TO_ALL = 0o777
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STATE, _FILES = "state.json", "files.json"
# The format of ACLs in extended attributes, include/uapi/linux/posix_acl_xattr.h.
_ACL_DEFAULT, _ACL_VERSION, _ACL_NO_ID = "system.posix_acl_default", 2, 0xFFFFFFFF
_ALL_RIGHTS = 7
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 1, 2, 4, 16, 32


class StoredFile(msgspec.Struct, array_like=True):
    """A file as it was hashed: it is unchanged while size, time and inode are the same."""

    size_bytes: int
    modified_at_ns: int
    inode: int
    sha256: str
    parts: list[ResultPart]
    is_stored: bool = False
    refusal: str = ""


class FolderState(msgspec.Struct, kw_only=True):
    """Whose folders these are.

    Attributes:
        attempt_ids: the attempts that had them, the last one now.
        paths: of the folders in the container, in their order.
        is_ready: whether all that earlier attempts left is there.
        ended: how the attempt ended, while its end waits for uploads, and after it.
        ended_at_ns: when that was seen.
        is_reported: whether its end no longer waits.
        gone_at_ns: since when neither portal nor executor have the attempt.
        event_offsets: how far event files were read, by path.
    """

    job_id: str
    attempt_ids: list[str]
    paths: list[str]
    is_ready: bool = False
    ended: AttemptObservation | None = None
    ended_at_ns: int = 0
    is_reported: bool = False
    gone_at_ns: int = 0
    event_offsets: dict[str, int] = {}


class Folder:
    """The folders of one attempt. Attributes are those of the state, and the files by path."""

    def __init__(self, root: Path, state: FolderState) -> None:
        self.root = root
        self.state = state
        self.files = load_json(root / _FILES, dict[str, StoredFile]) or {}
        self._lock = Lock()
        self._saved = b""
        self._saved_files = b""

    @property
    def attempt_id(self) -> str:
        """The attempt that has the folders."""
        return self.state.attempt_ids[-1]

    def host_paths(self) -> list[Path]:
        """Return the folders on the host, in the order of their paths in the container."""
        return [self.root / str(index) for index in range(len(self.state.paths))]

    def pairs(self) -> list[tuple[str, Path]]:
        """Return the path of each folder in the container, and on the host."""
        return list(zip(self.state.paths, self.host_paths(), strict=True))

    def place(self, path: str) -> tuple[Path, str]:
        """Return the folder on the host of a file, and its path there.

        Raises:
            FileNotFoundError: it is in no output folder.
        """
        for output, root in self.pairs():
            prefix = f"{output.rstrip('/')}/"
            if path.startswith(prefix):
                return root, path.removeprefix(prefix)
        raise FileNotFoundError(path)

    def save(self) -> None:
        """Write the state to disk."""
        with self._lock:  # the thread of attempts saves, too
            encoded = msgspec.json.encode(self.state)
            if encoded != self._saved and save_json(self.root / _STATE, self.state):
                self._saved = encoded

    def save_files(self) -> None:
        """Write what is known of the files to disk; without it, they are hashed again."""
        # Each look at the folders ends with this: ten thousand files are megabytes.
        digest = sha256(msgspec.json.encode(self.files)).digest()
        if digest != self._saved_files and save_json(self.root / _FILES, self.files):
            self._saved_files = digest


class Folders:
    """All folders below the data folder. For one thread at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir / RESULTS_NAME

    def load(self) -> Iterator[Folder]:
        """Yield the folders that an earlier run of the agent left."""
        if not self._root.is_dir():
            return
        for path in sorted(self._root.iterdir()):
            state = load_json(path / _STATE, FolderState) if _IDENT.fullmatch(path.name) else None
            if state is None:  # killed while it was made, or while it was deleted
                remove(path)
                continue
            if state.attempt_ids[-1] != path.name:  # killed while it was handed on
                state.attempt_ids.append(path.name)
                state = _handed_on(state)
            yield Folder(path, state)

    def create(self, attempt_id: str, job_id: str, paths: Sequence[str]) -> Folder:
        """Make empty folders, which containers of any user may write to.

        Raises:
            OSError: the disk is full, or the data folder isn't writable.
        """
        if not _IDENT.fullmatch(attempt_id):
            raise OSError(0, f"{attempt_id!r} is not the ID of an attempt")
        root = self._root / attempt_id
        self._root.mkdir(mode=0o700, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        folder = Folder(
            root, FolderState(job_id=job_id, attempt_ids=[attempt_id], paths=list(paths))
        )
        for path in folder.host_paths():
            make_open(path)
        folder.save()
        return folder

    def hand_on(self, folder: Folder, attempt_id: str) -> Folder:
        """Give the folders of an ended attempt to the next one of its job.

        Raises:
            OSError: they can't be renamed.
        """
        target = self._root / attempt_id
        folder.root.rename(target)
        state = _handed_on(folder.state)
        state.attempt_ids.append(attempt_id)
        handed = Folder(target, state)
        handed.save()
        return handed


def _handed_on(state: FolderState) -> FolderState:
    return FolderState(
        job_id=state.job_id,
        attempt_ids=list(state.attempt_ids),
        paths=state.paths,
        is_ready=state.is_ready,
        event_offsets=state.event_offsets,
    )


def make_open(path: Path) -> None:
    """Make a folder that any user may write to, and whose files this user may read and delete.

    Files of containers belong to their users. A default ACL lets this user read them, too, unless
    a program takes their rights away; file systems without ACLs leave it at the usual rights.
    """
    path.mkdir(exist_ok=True)
    path.chmod(OPEN_TO_ALL)
    entries = [
        (_USER_OBJ, _ACL_NO_ID),
        (_USER, os.geteuid()),
        (_GROUP_OBJ, _ACL_NO_ID),
        (_MASK, _ACL_NO_ID),
        (_OTHER, _ACL_NO_ID),
    ]
    acl = struct.pack("<I", _ACL_VERSION) + b"".join(
        struct.pack("<HHI", tag, _ALL_RIGHTS, ident) for tag, ident in entries
    )
    with suppress(OSError):
        os.setxattr(path, _ACL_DEFAULT, acl)


def remove(path: Path) -> bool:
    """Delete a folder; return False, and log a warning, if some of it can't be deleted."""
    problems: list[str] = []
    # It never follows links: a container may have written to it.
    shutil.rmtree(path, onerror=lambda _call, name, error: problems.append(f"{name}: {error[1]}"))
    if problems and path.exists():
        log.warning("can't delete all of %s: %s", path, problems[0])
        return False
    return True

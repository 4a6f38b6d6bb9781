"""Lists the files of an output folder, which a container writes to meanwhile.

Its content is not trusted: links are never followed, other things than files are left out, and
names, depth and number are bounded. What is left out is counted by its reason.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from protocol.datasets import MAX_PATH_LENGTH
from protocol.results import MAX_JOB_FILES

MAX_DEPTH = 64
# Entries that are looked at: a million empty folders must not keep the agent busy.
MAX_ENTRIES = 50_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO in the place of the file must not block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

LINKS = "symbolic links"
SPECIAL = "sockets, FIFOs or devices"
UNREADABLE = "files that the agent may not read; give others the right, as by `chmod o+r`"
BAD_NAMES = "files whose names are too long, not UTF-8 or have control characters"
TOO_DEEP = f"folders more than {MAX_DEPTH} levels deep"
TOO_MANY = f"files after the first {MAX_JOB_FILES:,}; pack them, as by tar"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in an output folder; `path` is the one in the container."""

    path: str
    size_bytes: int
    modified_at_ns: int
    changed_at_ns: int
    inode: int


@dataclass(slots=True)
class Scan:
    """What is in the output folders of an attempt.

    Attributes:
        files: by path in the container.
        left_out: how many entries are left out, by the reason.
        is_whole: whether all was seen; else a file that is missing may still be there.
    """

    files: dict[str, FoundFile] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    is_whole: bool = True
    entries: int = 0


def scan(folders: list[tuple[str, Path]]) -> Scan:
    """Return the files of folders, given by their paths in the container and on the host."""
    result = Scan()
    for path, host_path in folders:
        try:
            descriptor = os.open(host_path, _DIRECTORY)
        except OSError:
            result.is_whole = False
            continue
        _scan_folder(descriptor, path.rstrip("/"), 0, os.fstat(descriptor).st_dev, result)
    return result


def _scan_folder(descriptor: int, path: str, depth: int, device: int, result: Scan) -> None:
    """Add the files of an open folder, which is closed."""
    try:
        subfolders = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                result.entries += 1
                if result.entries > MAX_ENTRIES or len(result.files) >= MAX_JOB_FILES:
                    result.left_out[TOO_MANY] += 1
                    result.is_whole = False
                    return
                if name := _add_entry(entry, path, device, result):
                    subfolders.append(name)
        for name in sorted(subfolders):
            if depth >= MAX_DEPTH:
                result.left_out[TOO_DEEP] += 1
                continue
            try:
                inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
            except OSError:  # not readable, or replaced by a link meanwhile
                result.left_out[UNREADABLE] += 1
                result.is_whole = False
                continue
            _scan_folder(inner, f"{path}/{name}", depth + 1, device, result)
    except OSError:
        result.is_whole = False
    finally:
        os.close(descriptor)


def _add_entry(entry: "os.DirEntry[str]", path: str, device: int, result: Scan) -> str:
    """Add a file; return the name of a folder."""
    inner = f"{path}/{entry.name}"
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # deleted meanwhile
        return ""
    if not _is_sound(inner):
        result.left_out[BAD_NAMES] += 1
    elif stat.S_ISDIR(status.st_mode):
        return entry.name if status.st_dev == device else ""
    elif stat.S_ISREG(status.st_mode):
        result.files[inner] = found_file(inner, status)
    else:
        result.left_out[LINKS if stat.S_ISLNK(status.st_mode) else SPECIAL] += 1
    return ""


def found_file(path: str, status: os.stat_result) -> FoundFile:
    """Return a file as its status describes it."""
    return FoundFile(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _is_sound(path: str) -> bool:
    # A name that isn't UTF-8 has surrogates, which aren't printable.
    return path.isprintable() and len(path) <= MAX_PATH_LENGTH


@contextmanager
def opened(host_root: Path, relative: str) -> Iterator[int]:
    """Open a file below a folder for reading, through no link.

    Raises:
        OSError: it is gone, not readable, or no longer a file.
    """
    *folders, name = relative.split("/")
    descriptor = os.open(host_root, _DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        opened_file = os.open(name, _FILE, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    try:
        if not stat.S_ISREG(os.fstat(opened_file).st_mode):
            raise OSError(0, f"{relative} is no longer a file")
        yield opened_file
    finally:
        os.close(opened_file)

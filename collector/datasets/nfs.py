"""Exports of NFS servers, mounted read-only while they are read."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.sources import FolderSource, SourceFile
from core.ids import new_id

MOUNT_SECONDS = 60
OPTIONS = "ro,nosuid,nodev,noexec,soft,timeo=100,retrans=3"


class NFSSource:
    """A folder of an export: `nfs://host/export/folder`.

    Raises:
        DataError: the agent may not mount it, or the server refuses.
    """

    def __init__(self, url: str, mounts: Path) -> None:
        parts = urlsplit(url)
        remote = f"{parts.hostname}:{unquote(parts.path)}"
        if os.geteuid():
            raise DataError(
                f"{url} can't be mounted: the agent does not run as root. Mount {remote} on the "
                "appliance, and add it as a dataset of the kind file://."
            )
        if shutil.which("mount.nfs") is None:
            raise DataError(
                f"{url} can't be mounted: the appliance lacks mount.nfs. Install nfs-common "
                "(Debian, Ubuntu) or nfs-utils there, then start the job again."
            )
        self._folder = mounts / new_id()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._mount(url, remote, parts.port)
        self._source = FolderSource(url, self._folder)

    def _mount(self, url: str, remote: str, port: int | None) -> None:
        options = f"{OPTIONS},port={port}" if port else OPTIONS
        argv = ["mount", "-t", "nfs", "-o", options, "--", remote, str(self._folder)]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=MOUNT_SECONDS, check=False)  # noqa: S603 - no user input
        except subprocess.TimeoutExpired as error:
            raise TemporaryDataError(f"{url}: the server does not answer") from error
        if done.returncode:
            reason = " ".join(done.stderr.decode(errors="replace").split())[:300]
            if "timed out" in reason or "refused" in reason or "No route" in reason:
                raise TemporaryDataError(f"{url} can't be mounted: {reason}")
            raise DataError(
                f"{url} can't be mounted: {reason}. Check that the server exports it to this "
                "appliance."
            )

    def files(self) -> Iterator[SourceFile]:
        """Yield the files in the order of their paths."""
        return self._source.files()

    def read(self, path: str, offset: int, size_bytes: int) -> memoryview:
        """Return a range of a file."""
        return self._source.read(path, offset, size_bytes)

    def close(self) -> None:
        """Unmount it."""
        unmount(self._folder)


def unmount(folder: Path) -> None:
    """Unmount a folder, if something is mounted there, and remove it."""
    if os.path.ismount(folder):
        argv = ["umount", "--lazy", "--", str(folder)]
        subprocess.run(argv, capture_output=True, check=False)  # noqa: S603 - no user input
    with suppress(OSError):
        folder.rmdir()

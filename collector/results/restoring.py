"""Fetches the files that earlier attempts of a job left, before the next one starts.

The folders are new, and no container has them yet. What an interrupted run has fetched is used
again: its files are named and checked like all others.
"""

import os
import shutil
from pathlib import Path
from threading import Event

from collector.results.client import PartClient
from collector.results.folders import Folder, StoredFile, make_open
from collector.results.uploads import StoppedError
from protocol.results import ResultFile, is_result_path

_PARTIAL = "partial"
_ANY_USER = 0o666


class RestoreError(Exception):
    """The files can't be restored, and trying again does not help."""


class Restore:
    """The restoring of one attempt's files. For one thread, apart from the counts.

    Attributes:
        fetched_bytes: what is there, of `total_bytes`.
    """

    def __init__(self, folder: Folder, client: PartClient, *, stop: Event) -> None:
        self._folder = folder
        self._client = client
        self._stop = stop
        self.fetched_bytes = 0
        self.total_bytes = 0

    def run(self) -> None:
        """Fetch what is missing.

        Raises:
            RestoreError: the disk is full, or can't be written.
            DamagedError: a part has another content than was stored.
            StoppedError: the agent stops.
            PortalUnreachableError, PortalRefusedError: try again later.
        """
        files = self._listed()
        self.total_bytes = sum(file.size_bytes for file in files)
        self.fetched_bytes = 0
        self._require_room(files)
        for file in files:
            if self._is_there(file):
                self.fetched_bytes += file.size_bytes
            else:
                self._fetch(file)
        self._folder.save_files()

    def _listed(self) -> list[ResultFile]:
        files: list[ResultFile] = []
        has_more = True
        while has_more:
            after = files[-1].path if files else ""
            page = self._client.portal.stored_results(self._folder.attempt_id, after=after)
            files += page.files
            has_more = page.has_more and bool(page.files)
        # An update of a service may have taken a folder away.
        return [file for file in files if is_result_path(file.path, self._folder.state.paths)]

    def _require_room(self, files: list[ResultFile]) -> None:
        missing = sum(file.size_bytes for file in files if not self._is_there(file))
        free = shutil.disk_usage(self._folder.root).free
        if missing > free:
            raise RestoreError(
                f"The job's results have {missing:,} bytes, and the appliance's data folder has "
                f"{free:,} bytes free. Free some, or run the job elsewhere."
            )

    def _is_there(self, file: ResultFile) -> bool:
        stored = self._folder.files.get(file.path)
        return stored is not None and stored.sha256 == file.sha256 and self._host(file).is_file()

    def _fetch(self, file: ResultFile) -> None:
        partial = self._folder.root / _PARTIAL
        try:
            with partial.open("wb") as target:
                for part in file.parts:
                    source = self._client.portal.result_source(self._folder.attempt_id, part.sha256)
                    for data in self._client.get(source.url, part.sha256, part.size_bytes):
                        if self._stop.is_set():
                            raise StoppedError
                        target.write(data)
                        self.fetched_bytes += len(data)
                target.flush()
                os.fsync(target.fileno())
            host_path = self._host(file)
            self._make_parents(host_path)
            partial.chmod(_ANY_USER)
            os.utime(partial, ns=(file.modified_at_ns, file.modified_at_ns))
            partial.rename(host_path)
        except OSError as error:
            raise RestoreError(f"{file.path} can't be written: {error.strerror}.") from error
        status = host_path.stat()
        self._folder.files[file.path] = StoredFile(
            status.st_size,
            status.st_mtime_ns,
            status.st_ino,
            file.sha256,
            file.parts,
            is_stored=True,
        )

    def _host(self, file: ResultFile) -> Path:
        root, relative = self._folder.place(file.path)
        return root / relative

    def _make_parents(self, path: Path) -> None:
        missing = []
        parent = path.parent
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        for folder in reversed(missing):
            make_open(folder)

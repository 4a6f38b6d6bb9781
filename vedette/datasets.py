"""Upload and download of datasets: in parts, several at a time, in bounded memory.

An upload reads all files, and sends only the parts that the portal does not have: after a break,
or with a few files changed, that is what is missing.
"""

import os
import random
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from core.atomic_files import replacing
from core.errors import InvalidInputError
from protocol.datasets import ManifestFile, ManifestHead, ManifestPage, ManifestPart
from protocol.manifests import (
    ManifestWriter,
    StoredPage,
    content_hash,
    decode_page,
    head_digest,
    safe_path,
)
from vedette.client import Client
from vedette.errors import PortalError

T = TypeVar("T")

PARALLEL = 4
"""How many parts of up to 64 MiB are sent or fetched at a time."""
RETRY_SECONDS = 300.0
_CHUNK_BYTES = 1024**2
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
_TEMPORARY = frozenset({"overloaded", "unavailable", "database_unavailable"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an upload or download is.

    Attributes:
        files: read, or written.
        total_files: of a download; 0 while it is not known.
        bytes: read, or written.
        sent_bytes: sent or fetched; the rest was there already.
    """

    files: int = 0
    total_files: int = 0
    bytes: int = 0
    sent_bytes: int = 0


Report = Callable[[Progress], None]


@dataclass(slots=True)
class _Counter:
    """Counts progress from several threads, and reports it."""

    report: Report
    progress: Progress = field(default_factory=Progress)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, files: int = 0, read_bytes: int = 0, sent_bytes: int = 0) -> None:
        with self.lock:
            before = self.progress
            self.progress = replace(
                before,
                files=before.files + files,
                bytes=before.bytes + read_bytes,
                sent_bytes=before.sent_bytes + sent_bytes,
            )
            self.report(self.progress)


def upload_version(
    client: Client,
    dataset_id: str,
    path: Path,
    *,
    parallel: int = PARALLEL,
    report: Report = lambda _progress: None,
) -> dict[str, Any]:
    """Upload a folder or a file as a new version, and return the version.

    The same folder of the same host continues an upload that broke off.

    Raises:
        InvalidInputError: a file can't be uploaded, or changes meanwhile; names it.
        PortalError: the portal refuses it.
    """
    body = {"upload_key": _upload_key(path)}
    version = client.post(f"/datasets/{dataset_id}/versions", body)
    base, counter = f"/dataset-versions/{version['id']}", _Counter(report)
    with _Pool(parallel) as pool:

        def take_part(part: ManifestPart, data: bytes) -> None:
            pool.submit(partial(_send_part, client, base, part.sha256.hex(), data, counter))

        def send_pages(pages: list[StoredPage]) -> None:
            for page in pages:
                pool.submit(partial(_send, client, f"{base}/pages/{page.entry.sha256}", page.data))

        writer = ManifestWriter(take_part)
        try:
            for source in _files(path):
                chunks, is_executable = _chunks(source.path, counter), source.is_executable
                pages = writer.add(
                    source.name, source.size_bytes, chunks, is_executable=is_executable
                )
                send_pages(pages)
                counter.add(files=1)
            send_pages(writer.finish())
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"The upload stopped. {error}") from error
        if not writer.entries:
            raise InvalidInputError(f"{path} has no files. A version needs one at least.")
        pool.wait()
    head = writer.head()
    published = _send(client, f"{base}/head", msgspec.json.encode(head))
    return {**client.get(f"/dataset-versions/{published['id']}"), "digest": head_digest(head)}


def download_version(
    client: Client,
    version: dict[str, Any],
    folder: Path,
    *,
    report: Report = lambda _progress: None,
) -> Progress:
    """Write the files of a version below a folder; those that are there already are not fetched.

    Raises:
        InvalidInputError: the portal does not store its content; says where it is.
    """
    if not version["parts_stored"]:
        raise InvalidInputError(
            f"The portal does not store the files of {version['label']}: jobs read them from the "
            "dataset's source. Fetch them there. Only uploads can be downloaded."
        )
    base = f"/dataset-versions/{version['id']}"
    head = msgspec.convert(client.get(f"{base}/head"), ManifestHead)
    counter = _Counter(report, Progress(total_files=head.file_count))
    for entry in head.pages:
        page = decode_page(_download(client, f"{base}/pages/{entry.sha256}"), entry.sha256)
        fetch = _Fetcher(client, base, page, counter)
        for file in page.files:
            _write(folder, file, fetch, counter)
    return counter.progress


@dataclass(frozen=True, slots=True)
class _SourceFile:
    """A file to upload."""

    name: str
    path: Path
    size_bytes: int
    is_executable: bool


def _files(root: Path) -> Iterator[_SourceFile]:
    """Yield the files of a folder in the order of their paths.

    Raises:
        ValueError: something is no file, such as a socket, or a link to a folder.
    """
    if root.is_file():
        yield _source_file(root, root.name)
        return
    if not root.is_dir():
        raise ValueError(f"{root} is no file or folder.")
    pending = [_names(root, "")]
    while pending:
        try:
            name = next(pending[-1])
        except StopIteration:
            pending.pop()
            continue
        if name.endswith("/"):
            pending.append(_names(root, name))
        else:
            yield _source_file(root / name, name)


def _names(root: Path, folder: str) -> Iterator[str]:
    """Return the paths in a folder, as their files come in a manifest: folders end with "/"."""
    with os.scandir(root / folder) as entries:
        names = [
            f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
            for entry in entries
        ]
    names.sort()
    return (f"{folder}{name}" for name in names)


def _source_file(path: Path, name: str) -> _SourceFile:
    if not safe_path(name):
        raise ValueError(
            f"{name.encode(errors='replace').decode()!r} can't be a path in a dataset: it must be "
            "UTF-8, without control characters, with up to 1,024 characters. Rename it."
        )
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is a link to a folder. Upload that folder, or copy its files.")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no file. Move it out of the folder.")
    return _SourceFile(name, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _chunks(path: Path, counter: _Counter) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
            counter.add(read_bytes=len(chunk))


def _send_part(client: Client, base: str, digest: str, data: bytes, counter: _Counter) -> None:
    answer = _patiently(lambda: client.post(f"{base}/missing-parts", {"sha256s": [digest]}))
    if answer["missing"]:
        _send(client, f"{base}/parts/{digest}", data)
        counter.add(sent_bytes=len(data))


def _send(client: Client, path: str, data: bytes) -> Any:  # noqa: ANN401 - JSON
    return _patiently(lambda: client.send_bytes(path, data))


def _patiently(call: Callable[[], T]) -> T:
    """Call the portal, again while it is busy with other parts."""
    until, pause_seconds = time.monotonic() + RETRY_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except PortalError as error:
            if error.code not in _TEMPORARY or time.monotonic() + pause_seconds > until:
                raise
        time.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


class _Pool:
    """Threads, and at most one piece of work that waits for one of them."""

    def __init__(self, size: int) -> None:
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="parts")
        self._free = threading.Semaphore(size + 1)
        self._error: BaseException | None = None
        self._running = set[Future[Any]]()

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_error: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Start work as soon as few others wait; raise the error of work before, if any."""
        self._free.acquire()
        self._raise_error()
        future = self._executor.submit(work)
        self._running.add(future)
        future.add_done_callback(self._done)
        return future

    def wait(self) -> None:
        """Wait for all work; raise the error of any."""
        while self._running:
            for future in list(self._running):
                future.exception()
        self._raise_error()

    def _done(self, future: "Future[Any]") -> None:
        self._error = self._error or (None if future.cancelled() else future.exception())
        self._running.discard(future)
        self._free.release()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class _Fetcher:
    """Fetches the parts of a page that are needed, each once."""

    def __init__(self, client: Client, base: str, page: ManifestPage, counter: _Counter) -> None:
        self._client = client
        self._base = base
        self._parts = page.parts
        self._counter = counter
        self._last: tuple[int, bytes] = (-1, b"")

    def part(self, index: int) -> bytes:
        """Return the content of a part of the page, whose hash was checked."""
        if self._last[0] != index:
            digest = self._parts[index].sha256.hex()
            data = _download(self._client, f"{self._base}/parts/{digest}")
            if content_hash(data) != digest:
                raise InvalidInputError(
                    f"The part {digest} arrived damaged. Run the download again."
                )
            self._last = (index, data)
            self._counter.add(sent_bytes=len(data))
        return self._last[1]

    def content(self, file: ManifestFile) -> Iterator[bytes]:
        """Yield the content of a file."""
        left_bytes, index, offset = file.size_bytes, file.part, file.offset
        while left_bytes:
            piece = self.part(index)[offset : offset + left_bytes]
            yield piece
            left_bytes -= len(piece)
            index, offset = index + 1, 0


def _download(client: Client, path: str) -> bytes:
    return _patiently(lambda: client.download(path))


def _write(folder: Path, file: ManifestFile, fetch: _Fetcher, counter: _Counter) -> None:
    target = folder / file.path
    if not _is_there(target, file):
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o777 if file.is_executable else 0o666
        with replacing(target, mode=mode, is_durable=False) as stream:
            for piece in fetch.content(file):
                stream.write(piece)
    counter.add(files=1, read_bytes=file.size_bytes)


def _is_there(path: Path, file: ManifestFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    digest = sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest() == file.sha256


def _upload_key(path: Path) -> str:
    return content_hash(f"{socket.gethostname()}\0{path.absolute()}".encode(errors="replace"))

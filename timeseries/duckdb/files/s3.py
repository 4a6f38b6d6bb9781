"""Files of samples in a bucket of S3 or of a server with its API.

Uploads become visible when they are complete. DuckDB reads them through `fsspec`, by blocks that
are cached on disk. Address and credentials are those of the AWS tools: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, or the role of the machine.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
from fsspec import AbstractFileSystem
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from timeseries.duckdb.files.block_cache import BlockCache
from timeseries.duckdb.files.files import OWNER, check_owner
from timeseries.duckdb.files.layout import DEPTHS
from timeseries.store import StoreUnavailableError

_PROTOCOL = "samples"
_TIMEOUT = timedelta(seconds=60)
_RETRY_TIMEOUT = timedelta(seconds=30)
_MAX_RETRIES = 3
_MAX_CONCURRENCY = 4
"""How many parts of 5 MiB of a file are in memory while it is uploaded."""
_MODIFIED_AT = datetime(2000, 1, 1, tzinfo=UTC)  # files never change


class S3Files:
    """Files under a prefix of a bucket.

    Args:
        address: s3://bucket/prefix; the prefix may be missing.
        folder: a local one for uploads and the cache.
        cache_bytes: the size of the cache.
        is_open: whether new files are in the open layout.
    """

    def __init__(
        self, address: str, *, folder: Path, cache_bytes: int, is_open: bool = False
    ) -> None:
        self.is_open = is_open
        self.place = address.rstrip("/")
        self.allowed = [f"{_PROTOCOL}://"]
        self.filesystem = _FileSystem(self)
        bucket, _, prefix = self.place.removeprefix("s3://").partition("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={"timeout": _TIMEOUT, "allow_http": endpoint.startswith("http://")},
            retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
        )
        self._uploads = folder / "uploads"
        self._uploads.mkdir(parents=True, exist_ok=True)
        self._cache = BlockCache(folder / "cache", max_bytes=cache_bytes)
        self._sizes: dict[str, int] = {}

    def address(self, path: str) -> str:
        """Return the address in the file system that DuckDB reads."""
        return f"{_PROTOCOL}://{path}"

    def create(self, path: str) -> Path:
        """Create a local file."""
        file = self._uploads / Path(path).name
        file.touch()
        return file

    def publish(self, new: Path, path: str) -> None:
        """Upload a file."""
        size = new.stat().st_size
        with self._reporting("write"):
            obstore.put(self._store, path, new, max_concurrency=_MAX_CONCURRENCY)
        self._sizes[path] = size
        new.unlink()

    def discard(self, new: Path, path: str) -> None:  # noqa: ARG002 - as of local files
        """Delete the local file."""
        new.unlink()

    def replace(self, path: str, content: bytes) -> None:
        """Upload a small object."""
        with self._reporting("write"):
            obstore.put(self._store, path, content)

    def content(self, path: str) -> bytes:
        """Return what `replace` wrote."""
        with self._reporting("read"), suppress(FileNotFoundError):
            return bytes(obstore.get(self._store, path).bytes())
        raise FileNotFoundError(path)

    def abandon(self) -> None:
        """Delete what was created and not published."""
        for file in self._uploads.iterdir():
            file.unlink()

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, and what the cache has of them."""
        to_delete = list(paths)
        if not to_delete:
            return
        with self._reporting("delete"):
            obstore.delete(self._store, to_delete)
        for path in to_delete:
            self._cache.forget(_name(path), self._sizes.pop(path, 0))

    def list_paths(self) -> set[str]:
        """Return the paths of all objects that could be files of samples."""
        self.abandon()
        with self._reporting("list"):
            self._sizes = {
                entry["path"]: entry["size"]
                for chunk in obstore.list(self._store)
                for entry in chunk
                if entry["path"].endswith(".parquet") and len(entry["path"].split("/")) in DEPTHS
            }
        return set(self._sizes)

    def claim(self, owner: str) -> None:
        """Reserve the prefix for one database."""
        with self._reporting("write"):
            try:
                obstore.put(self._store, OWNER, owner.encode(), mode="create")
                stored_owner = owner
            except AlreadyExistsError:
                stored_owner = bytes(obstore.get(self._store, OWNER).bytes()).decode(
                    errors="replace"
                )
        check_owner(self.place, stored_owner, owner)

    def size(self, path: str) -> int:
        """Return the size of an object."""
        if path not in self._sizes:
            with self._reporting("read"):
                self._sizes[path] = obstore.head(self._store, path)["size"]
        return self._sizes[path]

    def read(self, path: str, start: int, end: int) -> bytes:
        """Return a part of an object, which ends where the object does."""
        size = self.size(path)

        def fetch(first: int, last: int) -> bytes:
            with self._reporting("read"):
                return bytes(obstore.get_range(self._store, path, start=first, end=min(last, size)))

        return self._cache.read(_name(path), start, min(end, size), fetch) if start < size else b""

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, PermissionError) as error:
            reason = str(error).partition("\n")[0]
            raise StoreUnavailableError(
                f"Can't {action} the samples in {self.place}: {reason}. Check the bucket, "
                "AWS_ENDPOINT_URL, AWS_REGION and the credentials."
            ) from error


class _FileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The file system through which DuckDB reads objects."""

    protocol = _PROTOCOL
    cachable = False

    def __init__(self, files: S3Files) -> None:
        super().__init__()
        self._files = files

    def open(self, path: str, *_args: object, **_options: object) -> "_File":
        return _File(self._files, self._strip_protocol(path))

    def info(self, path: str, **_options: object) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return {"name": name, "size": self._files.size(name), "type": "file"}

    def exists(self, _path: str, **_options: object) -> bool:
        return True  # a missing one fails when it is opened

    def modified(self, _path: str) -> datetime:
        return _MODIFIED_AT


class _File:
    """An object open for reading.

    DuckDB's threads share it: each one seeks, and then reads from where it has sought.
    """

    def __init__(self, files: S3Files, path: str) -> None:
        self._files = files
        self._path = path
        # Not `threading.local`, which ends with each of the calls from a thread of DuckDB.
        self._offsets: dict[int, int] = {}

    def seek(self, offset: int, _whence: int = 0) -> int:
        self._offsets[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        return self._offsets.get(threading.get_ident(), 0)

    def read(self, count: int) -> bytes:
        start = self.tell()
        data = self._files.read(self._path, start, start + count)
        self.seek(start + len(data))
        return data

    def close(self) -> None:
        """Nothing is open."""


def _name(path: str) -> str:
    """Return the name of a file, which has a unique part."""
    return path.rpartition("/")[2]

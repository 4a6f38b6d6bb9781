"""Sources of datasets: buckets, web servers and folders, listed and read by path and range."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

import urllib3

from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.pool import Pool
from collector.sending.http import HTTP_ERRORS, HTTPClient, root_cause
from collector.tls import TLSContexts
from protocol.datasets import DatasetSource, SourceKind

if TYPE_CHECKING:
    from obstore import ObjectMeta

TIMEOUT_SECONDS = 60.0
CONNECT_SECONDS = 10.0
RETRIES = 2
NEW_VERSION = "Make a new version of the dataset from what is there now."
NEW_CREDENTIALS = "Renew the credentials of the dataset, then start the job again."
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status: (\d{3})")
_CAUSE = re.compile(r'(?:error|message): "([^"]+)"')
_SHORT = 300
_OK, _PARTIAL, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _GONE, _UNSATISFIABLE = (
    200,
    206,
    401,
    403,
    404,
    410,
    416,
)
_TOO_MANY, _SERVER_ERRORS, _REQUEST_TIMEOUT = 429, 500, 408


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source; `modified_ns` changes with its content, as far as the source knows."""

    path: str
    size_bytes: int
    modified_ns: int
    is_executable: bool = False


class Source(Protocol):
    """Reads a source; `read` may be called by several threads."""

    def files(self) -> Iterator[SourceFile]:
        """Yield all files, in the order of their paths if the source has that order.

        Raises:
            DataError: it can't be listed, or has what a dataset can't.
        """

    def read(self, path: str, offset: int, size_bytes: int) -> memoryview:
        """Return this many bytes of a file.

        Raises:
            DataError: they can't be read.
        """

    def close(self) -> None:
        """Release connections and mounts."""


class S3Source:
    """Objects below a prefix of a bucket, or the object with that name."""

    def __init__(self, source: DatasetSource) -> None:
        # The extra `data` has it.
        from obstore.store import S3Store  # noqa: PLC0415 - only where it is used

        parts = urlsplit(source.url)
        self._url = source.url
        self._prefix = unquote(parts.path).strip("/")
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": source.endpoint_url.startswith("http:"),
                "timeout": timedelta(seconds=TIMEOUT_SECONDS),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            },
            "retry_config": {
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=TIMEOUT_SECONDS),
            },
            "region": source.region or "us-east-1",
        }
        if source.endpoint_url:
            options["endpoint"] = source.endpoint_url
        if source.access_key_id:
            options["access_key_id"] = source.access_key_id
            options["secret_access_key"] = source.secret_access_key
            if source.session_token:
                options["session_token"] = source.session_token
        else:  # not the agent's own credentials, nor those of the host's cloud
            options["skip_signature"] = True
        self._store = S3Store(parts.netloc, **options)
        self._is_object: bool | None = None

    def files(self) -> Iterator[SourceFile]:
        """Yield the objects below the prefix; one of that name if there are none."""
        import obstore  # noqa: PLC0415 - only where it is used

        count, prefix = 0, f"{self._prefix}/" if self._prefix else ""
        try:
            for page in obstore.list(self._store, prefix or None):
                for entry in page:
                    count += 1
                    yield _object_file(entry, entry["path"].removeprefix(prefix))
            if not count and self._prefix:
                entry = obstore.head(self._store, self._prefix)
                self._is_object = True
                yield _object_file(entry, self._prefix.rpartition("/")[2])
        except Exception as error:
            raise _s3_error(error, self._url, "listed") from error

    def read(self, path: str, offset: int, size_bytes: int) -> memoryview:
        """Return a range of an object."""
        import obstore  # noqa: PLC0415 - only where it is used

        try:
            content = obstore.get_range(
                self._store, self._key(path), start=offset, length=size_bytes
            )
        except Exception as error:
            raise _s3_error(error, f"{self._url.rstrip('/')}/{path}", "read") from error
        return _exactly(memoryview(content), size_bytes, f"{self._url.rstrip('/')}/{path}")

    def close(self) -> None:
        """Connections end with the object."""

    def _key(self, path: str) -> str:
        if self._is_object is None and self._prefix.rpartition("/")[2] == path:
            import obstore  # noqa: PLC0415 - only where it is used

            try:
                obstore.head(self._store, self._prefix)
                self._is_object = True
            except FileNotFoundError:
                self._is_object = False
        if self._is_object:
            return self._prefix
        return f"{self._prefix}/{path}" if self._prefix else path


def _object_file(entry: "ObjectMeta", path: str) -> SourceFile:
    modified_ns = int(entry["last_modified"].timestamp()) * 10**9
    return SourceFile(path, entry["size"], modified_ns)


def _s3_error(error: Exception, address: str, what: str) -> DataError:  # noqa: PLR0911 - a table
    """Return what a failed request means, by the code and status in the text of obstore's error."""
    if isinstance(error, DataError):
        return error
    text = " ".join(str(error).split())
    code = _CODE.search(text)
    status = _STATUS.search(text)
    reason = code[1] if code else f"status {status[1]}" if status else _short(text)
    if reason in _EXPIRED:
        return DataError(
            f"The credentials for {address} have expired or are wrong ({reason}). {NEW_CREDENTIALS}"
        )
    if isinstance(error, FileNotFoundError) or (status and status[1] == "404"):
        return DataError(f"{address} is not there (404). Put it back, or: {NEW_VERSION}")
    if isinstance(error, PermissionError) or (status and status[1] in {"401", "403"}):
        return DataError(
            f"{address} can't be {what}: access is denied (403). Allow the dataset's credentials "
            "to list and read the bucket, or renew them; then start the job again."
        )
    if reason == "InvalidRange" or (status and status[1] == "416"):
        return DataError(f"{address} is shorter than it was. {NEW_VERSION}")
    if isinstance(error, ValueError):  # a name that S3 has and paths can't
        return DataError(f"{address} can't be {what}: {text[:300]}")
    return TemporaryDataError(f"{address} can't be {what}: {reason}")


def _short(text: str) -> str:
    """Return the cause at the end of obstore's nested message."""
    if causes := _CAUSE.findall(text):
        return str(causes[-1])[:_SHORT]
    for sign in ("source: ", "error: "):
        text = text.rpartition(sign)[2]
    # Such as "InvalidCertificate( UnknownIssuer, ), }".
    return re.sub(r"\s*\(\s*", ": ", text.rstrip("() {},"))[:_SHORT]


class HTTPSSource:
    """One file on a web server that answers requests for ranges."""

    def __init__(self, source: DatasetSource, tls: TLSContexts | None = None) -> None:
        self._url = source.url
        self.address = source.url.partition("?")[0]
        self._name = unquote(urlsplit(source.url).path).rpartition("/")[2] or "data"
        self._headers = {"Accept-Encoding": "identity"}
        if source.bearer_token:
            self._headers["Authorization"] = f"Bearer {source.bearer_token}"
        self._pool = Pool(lambda: HTTPClient(tls))

    def files(self) -> Iterator[SourceFile]:
        """Yield the file, with the size that the server reports."""
        with self._get(0, 1) as response:
            if response.status == _PARTIAL:
                size = response.headers.get("Content-Range", "").rpartition("/")[2]
            elif response.status == _UNSATISFIABLE:
                size = "0"
            else:
                size = response.headers.get("Content-Length", "")
            modified = response.headers.get("Last-Modified") or response.headers.get("ETag") or ""
        if not size.isdigit():
            raise DataError(f"{self.address} does not report its size, which a dataset needs.")
        yield SourceFile(self._name, int(size), _stamp(modified))

    def read(self, path: str, offset: int, size_bytes: int) -> memoryview:  # noqa: ARG002 - its interface's
        """Return a range of the file."""
        with self._get(offset, size_bytes) as response:
            if (
                response.status == _OK
                and int(response.headers.get("Content-Length", -1)) != size_bytes
            ):
                raise DataError(
                    f"{self.address} ignores requests for ranges, which large files need. Copy the "
                    "file to a server or bucket that answers them."
                )
            content = response.read(size_bytes + 1)
        return _exactly(memoryview(content), size_bytes, self.address)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    @contextmanager
    def _get(self, offset: int, size_bytes: int) -> Iterator[urllib3.BaseHTTPResponse]:
        ranged = {"Range": f"bytes={offset}-{offset + size_bytes - 1}"}
        with self._pool.borrowed() as client, reading(self.address):  # noqa: SIM117 - it uses the first
            with client.pool_for(self._url).request(
                "GET",
                self._url,
                headers={**self._headers, **ranged},
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=TIMEOUT_SECONDS),
                retries=urllib3.Retry(0, redirect=5),
                preload_content=False,
            ) as response:
                if response.status not in {_OK, _PARTIAL, _UNSATISFIABLE}:
                    raise http_error(response.status, self.address)
                yield response
                if response.status == _OK:  # the rest of a large file
                    client.close()


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Raise TemporaryDataError where a server does not answer within the block."""
    try:
        yield
    except HTTP_ERRORS as error:
        raise TemporaryDataError(f"{address}: {root_cause(error)}") from error


def http_error(status: int, address: str) -> DataError:
    """Return what an answer of a web server means."""
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return DataError(f"{address} denies access ({status}). {NEW_CREDENTIALS}")
    if status in {_NOT_FOUND, _GONE}:
        return DataError(f"{address} is not there ({status}). Put it back, or: {NEW_VERSION}")
    if status >= _SERVER_ERRORS or status in {_TOO_MANY, _REQUEST_TIMEOUT}:
        return TemporaryDataError(f"{address} answered {status}")
    return DataError(f"{address} answered {status}. Check the address of the dataset.")


def _stamp(text: str) -> int:
    """Return a number of seconds for a text, in nanoseconds: the time of a file has room for it."""
    return int.from_bytes(blake2b(text.encode(), digest_size=3).digest(), "big") * 10**9


class FolderSource:
    """A folder of this appliance, or one file; links are read only if they stay within it.

    Raises:
        DataError: there is no such folder.
    """

    def __init__(self, url: str, root: Path) -> None:
        self._url = url
        try:
            self._root = root.resolve(strict=True)
            self._is_file = self._root.is_file()
        except OSError as error:
            raise _folder_error(error, str(root)) from error

    def files(self) -> Iterator[SourceFile]:
        """Yield the files in the order of their paths."""
        if self._is_file:
            yield self._listed(self._root, self._root.name)
        else:
            yield from self._below(self._root, "")

    def read(self, path: str, offset: int, size_bytes: int) -> memoryview:
        """Return a range of a file."""
        place = self._root if self._is_file else self._root / path
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                # What a link led to when it was listed may have changed since.
                self._check(place, Path(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115 - of a descriptor
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise DataError(f"{place} is no longer a file. {NEW_VERSION}")
                content = os.pread(descriptor, size_bytes, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _folder_error(error, str(place)) from error
        return _exactly(memoryview(content), size_bytes, str(place))

    def close(self) -> None:
        """Nothing stays open."""

    def _below(self, folder: Path, prefix: str) -> Iterator[SourceFile]:
        try:
            with os.scandir(folder) as entries:
                # As paths order: a folder counts with the "/" after its name.
                names = sorted(
                    entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                    for entry in entries
                )
        except OSError as error:
            raise _folder_error(error, str(folder)) from error
        for name in names:
            if name.endswith("/"):
                yield from self._below(folder / name, prefix + name)
            else:
                yield self._listed(folder / name, prefix + name)

    def _listed(self, place: Path, path: str) -> SourceFile:
        try:
            if place.is_symlink():
                self._check(place, place.resolve(strict=True))
            state = place.stat()
        except OSError as error:
            raise _folder_error(error, str(place)) from error
        if not stat.S_ISREG(state.st_mode):
            kind = "a link to a folder" if stat.S_ISDIR(state.st_mode) else "no regular file"
            raise DataError(
                f"{place} is {kind}, which a dataset can't have. Remove it, or choose a folder "
                "without it."
            )
        is_executable = bool(state.st_mode & stat.S_IXUSR)
        return SourceFile(path, state.st_size, state.st_mtime_ns, is_executable)

    def _check(self, place: Path, real: Path) -> None:
        if real != self._root and not real.is_relative_to(self._root):
            raise DataError(
                f"{place} is a link that leads out of {self._root}. Replace it by a copy of the "
                "file."
            )


def _folder_error(error: OSError, place: str) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{place} is not there. Put it back, or: {NEW_VERSION}")
    if isinstance(error, PermissionError):
        return DataError(f"{place}: the agent may not read it. Allow its user to, and start again.")
    return TemporaryDataError(f"{place}: {error.strerror or error}")


def _exactly(content: memoryview, size_bytes: int, address: str) -> memoryview:
    if len(content) != size_bytes:
        raise DataError(f"{address} has another size than it had. {NEW_VERSION}")
    return content


def _without_links(path: str) -> Path:
    """Return the path of a folder of this appliance.

    The portal has checked that the tenant may read what is at the path. A job that may write to a
    folder on the way could have put a link there, to any other folder.

    Raises:
        DataError: the path goes through a link.
    """
    real = os.path.realpath(path)
    if real != os.path.normpath(path):
        raise DataError(f"{path} is a link, or goes through one. Add the dataset as file://{real}.")
    return Path(path)


def open_source(source: DatasetSource, *, mounts: Path, tls: TLSContexts | None = None) -> Source:
    """Return what reads a source; `mounts` is the folder for network file systems.

    Raises:
        DataError: this agent can't read it.
    """
    match source.kind:
        case SourceKind.S3:
            return S3Source(source)
        case SourceKind.HTTPS:
            return HTTPSSource(source, tls)
        case SourceKind.FILE:
            return FolderSource(source.url, _without_links(unquote(urlsplit(source.url).path)))
        case SourceKind.NFS:
            from collector.datasets.nfs import NFSSource  # noqa: PLC0415 - only where it is used

            return NFSSource(source.url, mounts)
        case SourceKind.IPFS:
            from collector.datasets.ipfs import IPFSSource  # noqa: PLC0415 - only where it is used

            return IPFSSource(source, tls)
        case SourceKind.UPLOAD:
            raise DataError("An upload is read from the portal's store, part by part.")

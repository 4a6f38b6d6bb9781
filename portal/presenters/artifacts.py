"""Results of jobs as the portal shows them: their content, previews, folders and archives.

What a job writes is not trusted: only text, tables and raster images are shown, within bounds, and
nothing that a browser would run.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from pathlib import PurePosixPath
from urllib.parse import quote, urlsplit

from alerting.notification.senders.webhooks import BlockedAddressError, WebhookClient, host_of
from core.errors import OverloadedError, TooLargeError, UnavailableError
from core.quantities import format_size
from datasets.buckets import BUCKET_GONE, Bucket, bucket_of
from jobqueue.results.artifacts import Content, Part, ReadPart, read_range
from portal.context import database, portal

TEXT_BYTES = 64 * 1024
TABLE_ROWS, TABLE_COLUMNS, CELL_CHARACTERS = 200, 50, 200
IMAGE_BYTES = 8 * 1024**2
MAX_ZIP_BYTES = 64 * 1024**3
_FETCH_SECONDS = 60.0
# What the format can say.
_FIRST_ZIP_TIME, _LAST_ZIP_TIME = (1980, 1, 1, 0, 0, 0), (2107, 12, 31, 23, 59, 58)
_OK, _PARTIAL = 200, 206
# Signatures of images that browsers show without running anything in them.
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_TABLES = {".csv": ",", ".tsv": "\t"}
_TEXT_TYPES = {".txt", ".log", ".json", ".jsonl", ".yaml", ".yml", ".md", ".toml", ".ini", ".py"}


class PreviewKind(StrEnum):
    """How a file is shown."""

    TEXT = "text"
    TABLE = "table"
    IMAGE = "image"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The beginning of a file.

    Attributes:
        text: of a text.
        rows: of a table, the first of which are its headings.
        note: what is not shown, and why.
    """

    kind: PreviewKind
    text: str = ""
    rows: Sequence[Sequence[str]] = ()
    note: str = ""


def part_reader() -> ReadPart:
    """Return what reads ranges of parts: from the portal's store, or the tenant's bucket.

    A whole part is checked by its hash in the portal's store. The address of a bucket is the
    tenant's, so that only addresses are reached that webhooks may.
    """
    services = portal()
    client = WebhookClient(_FETCH_SECONDS, policy=services.webhook_policy)
    buckets: dict[str | None, Bucket | None] = {}

    def read(owner_id: str, part: Part, start: int, end: int) -> bytes:
        if not part.is_in_bucket and end - start == part.size_bytes:
            return services.parts().get(owner_id, part.sha256)
        if not part.is_in_bucket:
            return services.parts().get_range(owner_id, part.sha256, start, end - start)
        if part.connection_id not in buckets:
            with database() as session:
                buckets[part.connection_id] = bucket_of(
                    session, part.connection_id, services.secrets
                )
        return read_bucket(client, buckets[part.connection_id], part, start, end)

    return read


def bucket_url(content: Content) -> str | None:
    """Return the signed address of a file that is one object of the tenant's bucket."""
    if len(content.parts) != 1 or not content.parts[0].is_in_bucket:
        return None
    with database() as session:
        bucket = bucket_of(session, content.parts[0].connection_id, portal().secrets)
    return None if bucket is None else bucket.get_url(content.parts[0].sha256)


def read_bucket(
    client: WebhookClient, bucket: Bucket | None, part: Part, start: int, end: int
) -> bytes:
    """Return a range of a part in a tenant's bucket.

    Raises:
        UnavailableError: the bucket can't be read.
    """
    if bucket is None:
        raise UnavailableError(BUCKET_GONE)
    url = bucket.get_url(part.sha256)
    host = host_of(urlsplit(url))
    headers = {"Range": f"bytes={start}-{end - 1}"} if end - start < part.size_bytes else {}
    try:
        response, data = client.request(
            "GET", url, body=b"", headers=headers, max_answer_bytes=end - start + 1
        )
    except BlockedAddressError as error:
        raise UnavailableError(
            f"The tenant's bucket is at {host}, in a private network that the portal may not "
            "reach. Download the file by `vedette job download` from a host that can, or ask the "
            "operator to allow the network (webhook_allowed_networks)."
        ) from error
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"The tenant's bucket at {host} does not answer: {error}."
        ) from error
    if headers and response.status == _OK:  # it knows no ranges
        return read_bucket(client, bucket, part, 0, part.size_bytes)[start:end]
    if response.status != (_PARTIAL if headers else _OK) or len(data) != end - start:
        raise UnavailableError(
            f"The tenant's bucket at {host} answered {response.status} for a part of the file. "
            "Check its credentials in the data connection, and that nothing else deletes its "
            "objects."
        )
    return data


def content_type(path: str, head: bytes) -> str:
    """Return the media type of a file that a browser can do no harm with."""
    image = image_type(head)
    if image:
        return image
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _TABLES:
        return "text/csv" if suffix == ".csv" else "text/tab-separated-values"
    return "text/plain" if suffix in _TEXT_TYPES else "application/octet-stream"


def image_type(head: bytes) -> str:
    """Return the media type of a raster image by its first bytes, or ""."""
    for signature, media_type in _IMAGES.items():
        if head.startswith(signature):
            return media_type
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def disposition(path: str) -> str:
    """Return a header that has a browser save a file under its name."""
    name = PurePosixPath(path).name or "file"
    plain = "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '"\\%;' else "_"
        for letter in name
    )
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def preview(content: Content, read: ReadPart) -> Preview:
    """Return the beginning of a file as text, table or image."""
    head = b"".join(read_range(content, read, 0, min(TEXT_BYTES, content.size_bytes)))
    if image_type(head):
        if content.size_bytes > IMAGE_BYTES:
            note = f"Images above {format_size(IMAGE_BYTES)} are not shown. Download it."
            return Preview(kind=PreviewKind.NONE, note=note)
        return Preview(kind=PreviewKind.IMAGE)
    text = _text(head, is_whole=content.size_bytes <= len(head))
    if text is None:
        return Preview(kind=PreviewKind.NONE, note="There is no preview of this kind of file.")
    note = (
        f"The first {format_size(len(head))} of {format_size(content.size_bytes)}."
        if content.size_bytes > len(head)
        else ""
    )
    delimiter = _TABLES.get(PurePosixPath(content.path).suffix.lower())
    if delimiter:
        rows, is_cut = _rows(text, delimiter)
        if rows:
            cut = f"The first {TABLE_ROWS} rows and {TABLE_COLUMNS} columns." if is_cut else note
            return Preview(kind=PreviewKind.TABLE, rows=rows, note=cut)
    return Preview(kind=PreviewKind.TEXT, text=text, note=note)


def _text(head: bytes, *, is_whole: bool) -> str | None:
    """Return UTF-8 text, which may be cut within a character; None for something else."""
    if b"\0" in head:
        return None
    for cut in range(1 if is_whole else 4):
        try:
            return head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None


def _rows(text: str, delimiter: str) -> tuple[list[list[str]], bool]:
    rows: list[list[str]] = []
    is_cut = False
    try:
        for row in csv.reader(io.StringIO(text), delimiter=delimiter):
            if len(rows) > TABLE_ROWS:
                is_cut = True
                break
            is_cut = is_cut or len(row) > TABLE_COLUMNS
            rows.append([cell[:CELL_CHARACTERS] for cell in row[:TABLE_COLUMNS]])
    except csv.Error:
        return [], False
    return rows, is_cut


def archive(contents: Sequence[Content], read: ReadPart) -> Iterator[bytes]:
    """Yield a ZIP archive of files as it is made; they are not compressed.

    Raises:
        TooLargeError: they are too many bytes.
    """
    total = sum(content.size_bytes for content in contents)
    if total > MAX_ZIP_BYTES:
        raise TooLargeError(
            f"The files have {format_size(total)}; an archive has at most "
            f"{format_size(MAX_ZIP_BYTES)}. Use `vedette job download`, or download a folder."
        )
    return _zipped(contents, read)


def _zipped(contents: Sequence[Content], read: ReadPart) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True) as target:
        for content in contents:
            at = min(max(content.modified_at.timetuple()[:6], _FIRST_ZIP_TIME), _LAST_ZIP_TIME)
            info = zipfile.ZipInfo(content.path.lstrip("/"), date_time=at)
            info.external_attr = 0o644 << 16
            info.file_size = content.size_bytes
            with target.open(info, "w", force_zip64=True) as entry:
                for data in read_range(content, read, 0, content.size_bytes):
                    entry.write(data)
                    yield sink.take()
            yield sink.take()
    yield sink.take()


class _Sink(io.RawIOBase):
    """Collects what a ZIP file writes, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._written: list[bytes] = []

    def writable(self) -> bool:
        """Return that it can be written to."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override] # of any buffer
        """Add data."""
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken, self._written = b"".join(self._written), []
        return taken


def one_of_few(tenant_id: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a download while its tenant has few others: each holds a part in memory.

    Raises:
        OverloadedError: the tenant has too many.
    """
    limit = portal().downloads
    running = limit.running(tenant_id)
    if not running.__enter__():
        running.__exit__(None, None, None)
        raise OverloadedError(
            f"The tenant is downloading {limit.max_running} files already. Try again in a moment."
        )

    def counted() -> Iterator[bytes]:
        try:
            yield from chunks
        finally:
            running.__exit__(None, None, None)

    return counted()

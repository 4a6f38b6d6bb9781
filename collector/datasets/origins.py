"""Where parts come from, apart from peers: their source, or the portal's store."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.parts import Part, Piece
from collector.datasets.pool import Pool
from collector.datasets.sources import Source
from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.sending.portal_connection import PortalConnection
from protocol.datasets import IndexResult

GONE = frozenset({404, 410})
# Two versions at once, with four parts each.
MAX_HELD = 8
# Ranges that are asked of the portal at once: other agents of the tenant do so, too.
MAX_RANGES = 4


class _Held:
    """A whole part, and how much of it was not read yet."""

    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.left_bytes = len(content)


class SourceOrigin:
    """Parts of files that stay in their source: each piece is a range of a file."""

    reads_whole_parts = False

    def __init__(self, source: Source, name: str) -> None:
        self.name = name
        self._source = source

    def read(self, part: Part, piece: Piece) -> memoryview:  # noqa: ARG002 - its interface's
        """Return a piece."""
        return self._source.read(piece.segment.file.path, piece.file_offset, piece.size_bytes)


class PortalPages:
    """Calls the portal, over as many connections as threads do so at once."""

    def __init__(self, connect: Callable[[], PortalConnection]) -> None:
        self._pool = Pool(connect)

    def head(self, version_id: str) -> bytes:
        """Return the JSON of a head."""
        with self._pool.borrowed() as connection:
            return connection.dataset_head(version_id)

    def page(self, version_id: str, sha256: str) -> bytes:
        """Return a page as it is stored."""
        with self._pool.borrowed() as connection:
            return connection.dataset_page(version_id, sha256)

    def part(self, sha256: str, offset: int, size_bytes: int) -> tuple[bytes, bool]:
        """Return a range of a part, or all of it; and whether it is the range."""
        with self._pool.borrowed() as connection:
            return connection.part(sha256, offset, size_bytes)

    def send_page(self, version_id: str, sha256: str, data: bytes) -> None:
        """Send a page of a version that this agent indexes."""
        with self._pool.borrowed() as connection:
            connection.send_dataset_page(version_id, sha256, data)

    def finish(self, version_id: str, result: IndexResult) -> None:
        """Send the head of a version that this agent has indexed."""
        with self._pool.borrowed() as connection:
            connection.finish_dataset(version_id, result)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class PortalOrigin:
    """Parts of an upload, from the portal's store.

    A portal that answers with whole parts is asked for one at a time. Each is held until all of it
    was read: at most as many as are written at once.
    """

    name = "the portal"
    reads_whole_parts = True

    def __init__(self, portal: PortalPages) -> None:
        self._portal = portal
        self._lock = threading.Lock()
        self._whole: OrderedDict[str, _Held] = OrderedDict()
        self._has_ranges = False
        self._ranges = threading.BoundedSemaphore(MAX_RANGES)

    def read(self, part: Part, piece: Piece) -> memoryview:
        """Return a piece."""
        if self._has_ranges:
            with self._ranges:
                content, _ = self._get(part.sha256, piece.part_offset, piece.size_bytes)
            return self._checked(memoryview(content), piece.size_bytes)
        with self._lock:  # until it is known, one request shows what the portal does
            held = self._whole.get(part.sha256)
            if held is None:
                content, is_range = self._get(part.sha256, piece.part_offset, piece.size_bytes)
                if is_range:
                    self._has_ranges = True
                    return self._checked(memoryview(content), piece.size_bytes)
                whole = self._checked(memoryview(content), part.stored.size_bytes)
                held = self._whole[part.sha256] = _Held(whole)
                while len(self._whole) > MAX_HELD:
                    self._whole.popitem(last=False)
            held.left_bytes -= piece.size_bytes
            if held.left_bytes <= 0:
                self._whole.pop(part.sha256, None)
        end = piece.part_offset + piece.size_bytes
        return self._checked(held.content[piece.part_offset : end], piece.size_bytes)

    def _get(self, sha256: str, offset: int, size_bytes: int) -> tuple[bytes, bool]:
        try:
            return self._portal.part(sha256, offset, size_bytes)
        except PortalUnreachableError as error:
            raise TemporaryDataError(error.message) from error
        except PortalRefusedError as error:
            if error.http_status in GONE:
                raise DataError(
                    f"The portal no longer has a part of this upload ({sha256[:12]}). Upload the "
                    "dataset again: only what is missing is sent."
                ) from error
            raise TemporaryDataError(error.message) from error

    def _checked(self, content: memoryview, size_bytes: int) -> memoryview:
        if len(content) != size_bytes:
            raise TemporaryDataError(
                f"The portal sent {len(content)} bytes of a part where {size_bytes} were asked for"
            )
        return content

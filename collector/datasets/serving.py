"""What this appliance has for its peers, read from the folders of versions."""

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock

from collector.datasets.errors import DataError
from collector.datasets.parts import Part, parts_of
from collector.datasets.version_folder import VersionFolder

CACHED_PAGES = 16


class PartReader:
    """Reads parts of versions; the last pages stay in memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pages: OrderedDict[tuple[str, int], list[Part]] = OrderedDict()

    def read(
        self,
        folder: VersionFolder,
        digest: str,
        place: tuple[int, int],
        *,
        offset: int,
        size_bytes: int,
    ) -> Iterator[bytes]:
        """Yield a range of a part.

        Raises:
            DataError, OSError: it is not there.
        """
        parts = self._parts(folder, digest, place[0])
        if place[1] >= len(parts):
            raise DataError("There is no such part.")
        return folder.read(parts[place[1]], offset, size_bytes)

    def _parts(self, folder: VersionFolder, digest: str, page_index: int) -> list[Part]:
        key = digest, page_index
        with self._lock:
            if (cached := self._pages.get(key)) is not None:
                self._pages.move_to_end(key)
                return cached
        head = folder.head(digest)
        page = None
        if head is not None and page_index < len(head.pages):
            page = folder.page(head.pages[page_index].sha256)
        if page is None:
            raise DataError("There is no such page.")
        parts = parts_of(page, page_index)
        with self._lock:
            self._pages[key] = parts
            while len(self._pages) > CACHED_PAGES:
                self._pages.popitem(last=False)
        return parts

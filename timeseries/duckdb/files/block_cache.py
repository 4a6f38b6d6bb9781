"""A cache on disk for blocks of remote files, of bounded size.

The blocks that were read least recently are deleted. It begins empty: after a power failure its
files could be damaged.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from core.ids import new_id

BLOCK_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


class BlockCache:
    """Blocks of files that never change.

    Args:
        folder: for the blocks; emptied and used by nothing else.
        max_bytes: the total of the blocks.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        self._folder = folder
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, name: str, start: int, end: int, fetch: Callable[[int, int], bytes]) -> bytes:
        """Return a part of a file.

        Args:
            name: the file's, without slashes.
            start: the first byte.
            end: the byte after the last one, at most the size of the file.
            fetch: returns a part of the file from afar; it may end before the end of a block.
        """
        numbers = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        blocks = {number: self._load(name, number) for number in numbers}
        missing = [number for number, block in blocks.items() if block is None]
        while missing:
            # Neighbors are fetched together: requests cost more than bytes.
            count = next(
                (at for at, number in enumerate(missing) if number != missing[0] + at), len(missing)
            )
            first = missing[0]
            data = fetch(first * BLOCK_BYTES, (first + count) * BLOCK_BYTES)
            for at in range(count):
                block = data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]
                blocks[first + at] = block
                self._save(name, first + at, block)
            missing = missing[count:]
        joined = b"".join(block for block in blocks.values() if block is not None)
        offset = start - numbers.start * BLOCK_BYTES
        return joined[offset : offset + end - start]

    def forget(self, name: str, size: int) -> None:
        """Delete the blocks of a file of some size."""
        for number in range(-(-size // BLOCK_BYTES)):
            with self._lock:
                cached_bytes = self._sizes.pop((name, number), None)
                self._bytes -= cached_bytes or 0
            if cached_bytes is not None:
                self._file(name, number).unlink(missing_ok=True)

    def _load(self, name: str, number: int) -> bytes | None:
        with self._lock:
            if (name, number) not in self._sizes:
                return None
            self._sizes.move_to_end((name, number))
        try:
            return self._file(name, number).read_bytes()
        except FileNotFoundError:  # deleted meanwhile
            return None

    def _save(self, name: str, number: int, block: bytes) -> None:
        new = self._folder / new_id()
        try:
            new.write_bytes(block)
        except OSError as error:
            _log.warning("could not cache samples in %s: %s", self._folder, error)
            new.unlink(missing_ok=True)
            return
        with self._lock:
            new.replace(self._file(name, number))
            self._bytes += len(block) - self._sizes.pop((name, number), 0)
            self._sizes[name, number] = len(block)
            while self._bytes > self._max_bytes:
                oldest, size = self._sizes.popitem(last=False)
                self._bytes -= size
                self._file(*oldest).unlink(missing_ok=True)

    def _file(self, name: str, number: int) -> Path:
        return self._folder / f"{name}.{number}"

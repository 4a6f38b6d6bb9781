"""A limit of what is sent or fetched in a second."""

import time
from threading import Lock


class ByteRate:
    """A limit of bytes a second, shared by threads; 0 is none."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = Lock()
        self._free_at = 0.0

    def wait(self, size_bytes: int) -> None:
        """Wait until so many more bytes may be sent."""
        if not self._bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size_bytes / self._bytes_per_second
        time.sleep(begin - now)

"""The portal's access points, shared by everything that talks to it."""

from collections.abc import Sequence
from threading import Lock


class PortalAddresses:
    """Points at the address in use; a failure moves on to the next. Safe to share by threads."""

    def __init__(self, urls: Sequence[str]) -> None:
        if not urls:
            raise ValueError("an agent needs at least one portal address")
        self._urls = [url.rstrip("/") for url in urls]
        self._index = 0
        self._lock = Lock()

    @property
    def current(self) -> str:
        """The address in use, without a slash at the end."""
        return self._urls[self._index]

    def __len__(self) -> int:
        return len(self._urls)

    def mark_failed(self, url: str) -> None:
        """Move on, unless another thread did already."""
        with self._lock:
            if self._urls[self._index] == url:
                self._index = (self._index + 1) % len(self._urls)

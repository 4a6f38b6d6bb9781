"""Which part is fetched next, and by which of the appliances that fetch a version at once.

Each part has an owner among them, by a hash of part and appliance: the owner fetches it from the
source, the others from the owner. Nobody has to agree on anything; who waits too long for a part
fetches it from the source.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Lock

from collector.datasets.parts import Part

Place = tuple[int, int]
# A part is looked for among so many at a time.
WINDOW = 500


class PartQueue:
    """The parts of a version that are missing. Thread-safe."""

    def __init__(
        self, own_id: str, *, digest: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._own_id = own_id
        self._digest = digest
        self._monotonic = monotonic
        self._lock = Lock()
        self._waiting: deque[Place] = deque()
        self._under_way: set[Place] = set()
        self._idle_since: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a part is missing or being fetched."""
        with self._lock:
            return bool(self._waiting or self._under_way)

    def add(self, part: Part) -> None:
        """Add a part that is missing."""
        self._waiting.append((part.page_index, part.part_index))

    def take(
        self,
        peer_ids: Sequence[str],
        *,
        is_available: Callable[[Place], bool],
        wait_seconds: float,
    ) -> Place | None:
        """Return the next part to fetch; None while peers fetch all that is missing.

        Args:
            peer_ids: who else may be fetching the version.
            is_available: whether a peer has a part.
            wait_seconds: after this long without any part, the next one is not waited for.
        """
        with self._lock:
            for _ in range(min(WINDOW, len(self._waiting))):
                place = self._waiting.popleft()
                if self._is_own(place, peer_ids) or is_available(place):
                    return self._taken(place)
                self._waiting.append(place)
            now = self._monotonic()
            if self._idle_since is None:
                self._idle_since = now
            if self._waiting and now - self._idle_since > wait_seconds:
                # The next ones are not waited for either, unless a peer has some.
                self._under_way.add(self._waiting[0])
                return self._waiting.popleft()
        return None

    def put_back(self, part: Part) -> None:
        """Let a part be taken again, after the others."""
        with self._lock:
            place = part.page_index, part.part_index
            self._under_way.discard(place)
            self._waiting.append(place)

    def finish(self, part: Part) -> None:
        """Record that a part is there."""
        with self._lock:
            self._under_way.discard((part.page_index, part.part_index))

    def _taken(self, place: Place) -> Place:
        self._under_way.add(place)
        self._idle_since = None
        return place

    def _is_own(self, place: Place, peer_ids: Sequence[str]) -> bool:
        own = self._rank(place, self._own_id)
        return all(
            self._rank(place, peer_id) < own for peer_id in peer_ids if peer_id != self._own_id
        )

    def _rank(self, place: Place, appliance_id: str) -> bytes:
        text = f"{self._digest}/{place[0]}/{place[1]}/{appliance_id}"
        return blake2b(text.encode(), digest_size=8).digest()

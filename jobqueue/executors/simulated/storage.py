"""The images that jobs leave on a simulated appliance; their sizes follow from their names."""

from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from core.clock import Clock, to_ns
from jobqueue.executors.image_times import ImageTimes
from protocol.storage import CleanupOrder, CleanupResult, StorageReport, StoredImage

GIB = 1024**3
SMALLEST_BYTES, LARGEST_BYTES = GIB // 2, 12 * GIB

Disk = Callable[[], tuple[int, int]]
"""Returns total and used bytes of the disk, without images."""


class SimulatedStorage:
    """The storage of one simulated engine: each image of a job stays until it is deleted."""

    def __init__(
        self, path: Path, clock: Clock, *, in_use: Callable[[], Collection[str]], disk: Disk
    ) -> None:
        self._times = ImageTimes(path, clock)
        self._clock = clock
        self._in_use = in_use
        self._disk = disk

    def note_use(self, image: str) -> None:
        """Record that a job uses an image now, which is there from now on."""
        self._times.note_use(image)

    def report(self) -> StorageReport:
        """Return the images and the use of the disk."""
        in_use = self._in_use()
        times = self._times.update({*self._times.recorded(), *in_use}, in_use=in_use)
        total_bytes, used_bytes = self._disk()
        used_bytes += sum(map(_size_bytes, times))
        return StorageReport(
            images=[
                StoredImage(
                    image_id=_id_of(name),
                    names=[name],
                    size_bytes=_size_bytes(name),
                    seen_at_ns=image_times.seen_at_ns,
                    used_at_ns=image_times.used_at_ns,
                    is_in_use=name in in_use,
                )
                for name, image_times in times.items()
            ],
            disk_total_bytes=total_bytes,
            disk_free_bytes=max(total_bytes - used_bytes, 0),
        )

    def clean(self, order: CleanupOrder, *, keep: Collection[str]) -> CleanupResult:
        """Delete the ordered images that no attempt uses or is about to use."""
        times, protected = self._times.recorded(), {*keep, *self._in_use()}
        deleted = {name for name in times if _id_of(name) in order.images and name not in protected}
        self._times.update(times.keys() - deleted, in_use=())
        return CleanupResult(
            finished_at_ns=to_ns(self._clock()),
            images=len(deleted),
            freed_bytes=sum(map(_size_bytes, deleted)),
        )


def _id_of(name: str) -> str:
    return f"sha256:{sha256(name.encode()).hexdigest()}"


def _size_bytes(name: str) -> int:
    share = crc32(name.encode()) / 0xFFFFFFFF
    return int(SMALLEST_BYTES + share * (LARGEST_BYTES - SMALLEST_BYTES))

"""When images were seen first and used by a job last: engines don't know, so a file has it."""

import logging
from collections.abc import Collection
from pathlib import Path
from threading import Lock

import msgspec

from core.atomic_files import replace_file
from core.clock import Clock, to_ns

log = logging.getLogger(__name__)


class Times(msgspec.Struct, array_like=True):
    """The times of one image; `used_at_ns` is 0 if no job used it."""

    seen_at_ns: int
    used_at_ns: int = 0


class ImageTimes:
    """The times of an engine's images by id, in a file; thread-safe."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = Lock()

    def note_use(self, image_id: str) -> None:
        """Record that a job uses an image now."""
        with self._lock:
            times, now_ns = self.recorded(), to_ns(self._clock())
            seen_at_ns = times[image_id].seen_at_ns if image_id in times else now_ns
            self._save(times | {image_id: Times(seen_at_ns, now_ns)})

    def update(self, present: Collection[str], *, in_use: Collection[str]) -> dict[str, Times]:
        """Record the images that are new, gone, and in use by jobs now; return all times."""
        now_ns = to_ns(self._clock())
        with self._lock:
            recorded = self.recorded()
            times = {ident: recorded.get(ident) or Times(now_ns) for ident in present}
            for ident in times.keys() & set(in_use):
                times[ident] = Times(times[ident].seen_at_ns, now_ns)
            if times != recorded:
                self._save(times)
            return times

    def recorded(self) -> dict[str, Times]:
        """Return the recorded times."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Times])
        except (OSError, msgspec.DecodeError):
            return {}

    def _save(self, times: dict[str, Times]) -> None:
        try:
            replace_file(self._path, msgspec.json.encode(times), is_durable=False)
        except OSError as error:  # jobs run without it
            log.warning("can't write %s: %s", self._path, error)

"""The account of what was lost: dropped to stay within bounds, or not readable any more."""

import logging

from collector.buffering.cursor import Cursor

log = logging.getLogger(__name__)


class Losses:
    """Counts in the cursor, which outlives a restart.

    Attributes:
        is_unsaved: whether something was counted that the cursor's file does not say yet.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.is_unsaved = False

    def dropped(self, points: int, where: str, *, by_age: bool) -> None:
        """Count points that were dropped, and say so."""
        if not points:
            return
        cause = "too old" if by_age else "over its bound"
        log.warning("buffer %s: dropped %d points of %s", cause, points, where)
        self._cursor.dropped_points += points
        if by_age:
            self._cursor.dropped_by_age_points += points
        else:
            self._cursor.dropped_by_size_points += points
        self.is_unsaved = True

    def damaged(self, *, points: int, size_bytes: int) -> None:
        """Count what can't be read back; `points` as far as that is known."""
        self._cursor.damaged_points += points
        self._cursor.damaged_bytes += size_bytes
        self.is_unsaved = True

"""The buffer's cursor: what the portal has acknowledged, and counts of lost points."""

from pathlib import Path

import msgspec

from collector.buffering.segments import Range
from collector.data_dir import load_json

CURSOR_NAME = "cursor.json"
VERSION = 2


class Cursor(msgspec.Struct, omit_defaults=True):
    """The state of the buffer beside its segments.

    Attributes:
        version: of the file format.
        next_segment: the number of the next segment; each is used once.
        acknowledged: by segment, the byte ranges that were acknowledged or given up.
        dropped_points: points dropped to stay within the limits, ever.
        dropped_by_age_points: those of them that were too old.
        dropped_by_size_points: those of them that exceeded the size limit.
        damaged_points: points that could not be read back, as far as known.
        damaged_bytes: bytes that could not be read back.
        followed: the position of the buffer's second reader, if it has one.
        unfollowed_points: points that were dropped before that reader came to them, ever.
    """

    version: int
    next_segment: int = 1
    acknowledged: dict[int, list[Range]] = {}
    dropped_points: int = 0
    dropped_by_age_points: int = 0
    dropped_by_size_points: int = 0
    damaged_points: int = 0
    damaged_bytes: int = 0
    followed: tuple[int, int] | None = None
    unfollowed_points: int = 0


def read_cursor(folder: Path) -> Cursor:
    """Return the cursor; a new one, so that everything is sent again, if it can't be read."""
    return load_json(folder / CURSOR_NAME, Cursor) or Cursor(VERSION)

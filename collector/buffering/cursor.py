"""The buffer's cursor: what the portal has acknowledged, and what was lost, over restarts."""

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from collector.buffering.spans import Range
from collector.files import replace_file

log = logging.getLogger(__name__)

CURSOR_NAME = "cursor.json"
VERSION = 2


class Cursor(msgspec.Struct, omit_defaults=True):
    """What outlives a restart beside the segments.

    Attributes:
        version: of the file's form.
        next_segment: the number of the next segment; none is given out twice.
        first_segment: segments with a lower number are acknowledged whole.
        acknowledged: per segment the byte ranges that are acknowledged or given up.
        dropped_points: points dropped to stay within the bounds, ever.
        dropped_by_age_points: those of them that were too old.
        dropped_by_size_points: those of them for which there was no room.
        damaged_points: points that could not be read back, as far as that is known.
        damaged_bytes: bytes that could not be read back.
    """

    version: int
    next_segment: int = 1
    first_segment: int = 0
    acknowledged: dict[int, list[Range]] = {}
    dropped_points: int = 0
    dropped_by_age_points: int = 0
    dropped_by_size_points: int = 0
    damaged_points: int = 0
    damaged_bytes: int = 0


class _FirstCursor(msgspec.Struct):
    """The form of earlier releases: one position, everything before it acknowledged."""

    segment: int
    offset: int
    dropped_points: int = 0


def read_cursor(folder: Path) -> Cursor:
    """Return the cursor; a fresh one, so that all is sent again, where it can't be read."""
    path = folder / CURSOR_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Cursor(VERSION)
    except OSError as error:
        log.warning("%s can't be read, sending all again: %s", path, error)
        return Cursor(VERSION)
    try:
        return msgspec.json.decode(content, type=Cursor)
    except msgspec.MsgspecError as error:
        first = _read_first(content)
        if first is None:
            log.warning("%s is damaged, sending all again: %s", path, error)
        return first or Cursor(VERSION)


def write_cursor(folder: Path, content: bytes) -> None:
    """Replace the cursor's file.

    Raises:
        OSError: it can't be written; the old one is still there, and no half of the new one.
    """
    path = folder / CURSOR_NAME
    try:
        replace_file(path, content)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path.with_name(f"{CURSOR_NAME}.partial"))  # noqa: PTH108 - as in segments
        raise


def _read_first(content: bytes) -> Cursor | None:
    try:
        first = msgspec.json.decode(content, type=_FirstCursor)
    except msgspec.MsgspecError:
        return None
    return Cursor(
        VERSION,
        next_segment=first.segment + 1,
        first_segment=first.segment,
        acknowledged={first.segment: [(0, first.offset)]} if first.offset else {},
        dropped_points=first.dropped_points,
    )

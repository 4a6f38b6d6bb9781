"""What a part of a version holds, and how it is read piece by piece.

A *segment* is the content of a file, or of a stretch of a large one, in a part. A *piece* is what
one request reads: a kill of the agent loses the pieces that are under way, which together are at
most as large as a part.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from protocol.datasets import PART_BYTES, ManifestFile, ManifestPage, ManifestPart

PIECES_UNDER_WAY = 16
PIECE_BYTES = PART_BYTES // PIECES_UNDER_WAY


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The content of a file from `file_offset` on, which begins at `part_offset` of its part."""

    file_index: int
    file: ManifestFile
    part_offset: int
    file_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a version, by the indexes of its page and in its page, and what it holds."""

    page_index: int
    part_index: int
    stored: ManifestPart
    segments: list[Segment]

    @property
    def sha256(self) -> str:
        """The name of the part."""
        return self.stored.sha256.hex()

    @property
    def is_of_large_file(self) -> bool:
        """Whether it is a stretch of a file that takes several parts."""
        return self.segments[0].file.size_bytes > PART_BYTES


@dataclass(frozen=True, slots=True)
class Piece:
    """What one request reads, below a segment or over several that follow each other."""

    segment: Segment
    part_offset: int
    size_bytes: int

    @property
    def file_offset(self) -> int:
        """Where the piece begins in the file of its segment."""
        return self.segment.file_offset + self.part_offset - self.segment.part_offset


class Origin(Protocol):
    """Where parts come from: the source, the portal, or a peer."""

    name: str
    reads_whole_parts: bool
    """Whether a piece may reach over several files."""

    def read(self, part: Part, piece: Piece) -> memoryview:
        """Return the content of a piece.

        Raises:
            DataError: it can't be read.
        """


def parts_of(page: ManifestPage, page_index: int) -> list[Part]:
    """Return the parts of a page with what they hold."""
    parts = [Part(page_index, index, stored, []) for index, stored in enumerate(page.parts)]
    for file_index, file in enumerate(page.files):
        left_bytes, part_index, offset = file.size_bytes, file.part, file.offset
        while left_bytes:
            size_bytes = min(left_bytes, parts[part_index].stored.size_bytes - offset)
            done_bytes = file.size_bytes - left_bytes
            parts[part_index].segments.append(
                Segment(file_index, file, offset, done_bytes, size_bytes)
            )
            left_bytes, part_index, offset = left_bytes - size_bytes, part_index + 1, 0
    return parts


def pieces_of(starts: Iterable[tuple[Segment, int]], *, may_join: bool) -> Iterator[Piece]:
    """Yield the pieces of segments, each from a position on that is given in its part."""
    pending: Piece | None = None
    for segment, start in starts:
        position, end = start, segment.part_offset + segment.size_bytes
        while position < end:
            if pending is not None:
                is_next = may_join and position == pending.part_offset + pending.size_bytes
                room_bytes = PIECE_BYTES - pending.size_bytes if is_next else 0
                if room_bytes > 0:
                    taken_bytes = min(room_bytes, end - position)
                    size_bytes = pending.size_bytes + taken_bytes
                    pending = Piece(pending.segment, pending.part_offset, size_bytes)
                    position += taken_bytes
                    continue
                yield pending
            size_bytes = min(PIECE_BYTES, end - position)
            pending = Piece(segment, position, size_bytes)
            position += size_bytes
    if pending is not None:
        yield pending

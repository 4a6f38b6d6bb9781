"""Submissions on their way to an InfluxDB: cut into pieces, and those packed into requests.

Small submissions share a request, a large one takes several; its sender is answered once, when all
of them are done.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from core.errors import InvalidInputError
from timeseries.batch import Batch, Block
from timeseries.lineprotocol import encode_batch
from timeseries.store import RejectedPoint
from timeseries.write_queue import Submission

MAX_REQUEST_LINES = 5_000
MAX_REQUEST_BYTES = 1024 * 1024

_PIECE_POINTS = 500


@dataclass(slots=True)
class Pending:
    """A submission under way, what of it was refused and whether it failed."""

    submission: Submission
    rejected: list[RejectedPoint] = field(default_factory=list)
    error: Exception | None = None

    def settle(self) -> None:
        """Answer the sender."""
        if self.error is not None:
            self.submission.future.set_exception(self.error)
        else:
            self.submission.future.set_result(sorted(self.rejected, key=lambda one: one.position))


@dataclass(frozen=True, slots=True)
class Piece:
    """Some points of a submission as lines."""

    pending: Pending
    batch: Batch
    lines: bytes


def pieces_of(pending: Pending, batch: Batch) -> Iterator[Piece]:
    """Yield the points of a submission piece by piece; what is no line after all is refused."""
    for part in parts(batch, _PIECE_POINTS):
        yield from _encodable(pending, part)


def encoded(batch: Batch) -> bytes:
    """Return points as lines."""
    return encode_batch(batch, extra_tags={})


def packed(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces by request."""
    request: list[Piece] = []
    points = size = 0
    for piece in pieces:
        is_full = points + len(piece.batch) > MAX_REQUEST_LINES
        if request and (is_full or size + len(piece.lines) > MAX_REQUEST_BYTES):
            yield request
            request, points, size = [], 0, 0
        request.append(piece)
        points += len(piece.batch)
        size += len(piece.lines)
    if request:
        yield request


def parts(batch: Batch, max_points: int) -> Iterator[Batch]:
    """Yield the points of a batch in batches of at most so many."""
    blocks: list[Block] = []
    room = max_points
    for block in batch.blocks:
        start = 0
        while start < len(block):
            part = _rows(block, start, start + room)
            blocks.append(part)
            start += len(part)
            room -= len(part)
            if not room:
                yield Batch(tuple(blocks))
                blocks, room = [], max_points
    if blocks:
        yield Batch(tuple(blocks))


def _encodable(pending: Pending, batch: Batch) -> Iterator[Piece]:
    try:
        lines = encoded(batch)
    except InvalidInputError as fault:
        if len(batch) == 1:
            pending.rejected += all_rejected(batch, fault.message)
            return
    else:
        yield Piece(pending, batch, lines)
        return
    for half in parts(batch, (len(batch) + 1) // 2):
        yield from _encodable(pending, half)


def _rows(block: Block, start: int, end: int) -> Block:
    if start == 0 and end >= len(block):
        return block
    return Block(
        block.measurement,
        block.tags,
        block.tag_sets,
        block.tag_set_of[start:end],
        block.fields,
        block.kinds,
        tuple(column[start:end] for column in block.values),
        block.times_ns[start:end],
        block.positions[start:end],
    )


def all_rejected(batch: Batch, reason: str) -> list[RejectedPoint]:
    """Return all points of a batch as refused by the server."""
    return [
        RejectedPoint(position, f"InfluxDB refused it: {reason}")
        for block in batch.blocks
        for position in block.positions
    ]

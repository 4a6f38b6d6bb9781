"""The search: reads blocks in the order of their times until a page is full or the time is up.

A page that ends because the time is up says so, and its cursor continues where it ended: no line is
passed over. Nothing that a user sends makes a search longer than `LogLimits` allow.
"""

import hashlib
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pyarrow as pa

from logs.blocks import Block
from logs.files import DamagedFileError
from logs.lines import SCHEMA, Source
from logs.query import MAX_DELIVERED, Cursor, LogQuery
from protocol.lines import LEVELS, LogLevel

SEARCH_SECONDS = 8.0
HISTOGRAM_SECONDS = 4.0
MAX_BUCKETS = 200
FindBlocks = Callable[[LogQuery], Iterable[Block]]
_ORDER = ("at_ns", "sequence", "source", "job", "appliance", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLine:
    """A line as users see it; `id` is the same in every search."""

    id: str
    at_ns: int
    sequence: int
    source: Source
    level: LogLevel
    appliance: str
    job: str
    attempt: int
    unit: str
    event: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """A page of lines.

    Attributes:
        lines: in the order of the query.
        next: the cursor of the next page; None after the last.
        is_complete: whether all of the range up to the last line was searched; else the time was
            up, and `next` goes on from there.
        problems: files that can't be read.
    """

    lines: Sequence[FoundLine]
    next: str | None
    is_complete: bool
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of matching lines over time.

    Attributes:
        start_ns: of the first bucket.
        step_ns: length of a bucket.
        counts: for each level the counts of all buckets.
        is_complete: whether everything was counted before the time was up.
    """

    start_ns: int
    step_ns: int
    counts: dict[LogLevel, list[int]]
    is_complete: bool


@dataclass
class _Walk:
    """Blocks in the order of a query, opened when it is their turn."""

    blocks: Iterable[Block]
    query: LogQuery
    columns: Sequence[str]
    seconds: float
    problems: list[str] = field(default_factory=list)
    is_complete: bool = True

    def __post_init__(self) -> None:
        self._numbers = count()
        self._waiting: list[tuple[int, int, Block]] = []
        self._push(self.blocks)

    @property
    def frontier(self) -> int | None:
        """No line that is still to come is before this key in the order; None after the last."""
        return self._waiting[0][0] if self._waiting else None

    def tables(self) -> Iterator[pa.Table]:
        """Yield the lines of one block after the other until the time is up."""
        deadline = time.monotonic() + self.seconds
        while self._waiting:
            if time.monotonic() > deadline:
                self.is_complete = False
                return
            block = heapq.heappop(self._waiting)[2]
            try:
                content = block.load(self.columns)
            except DamagedFileError as error:
                self.problems.append(error.message)
                continue
            if isinstance(content, pa.Table):
                yield content
            else:
                self._push(content)

    def _push(self, blocks: Iterable[Block]) -> None:
        query = self.query
        for block in blocks:
            if block.last_ns >= query.start_ns and block.first_ns < query.end_ns:
                key = block.first_ns if query.is_oldest_first else -block.last_ns
                heapq.heappush(self._waiting, (key, next(self._numbers), block))


def search(
    query: LogQuery,
    find_blocks: FindBlocks,
    *,
    seconds: float = SEARCH_SECONDS,
) -> LogLines:
    """Return a page of matching lines.

    Args:
        query: what to find.
        find_blocks: returns the blocks that may have matches.
        seconds: after which the page ends with what was found.
    """
    rest = query.from_cursor()
    walk = _Walk(find_blocks(rest), rest, SCHEMA.names, seconds)
    skipped = query.cursor.delivered if query.cursor is not None else 0
    wanted = query.limit + skipped + 1
    lines: list[FoundLine] = []
    for table in walk.tables():
        lines = _first(lines, rest.matching(table), rest, wanted)
        if len(lines) >= wanted and _is_before(lines[-1], walk.frontier, rest):
            break
    if not walk.is_complete:
        lines = [line for line in lines if _is_before(line, walk.frontier, rest)]
    return _page(query, lines, skipped, walk)


def count_lines(
    query: LogQuery,
    find_blocks: FindBlocks,
    *,
    buckets: int,
    seconds: float = HISTOGRAM_SECONDS,
) -> Histogram:
    """Return how many lines match over time, by level."""
    step_ns = max(1, -(-(query.end_ns - query.start_ns) // max(1, min(buckets, MAX_BUCKETS))))
    number = -(-(query.end_ns - query.start_ns) // step_ns)
    totals = np.zeros((number, len(LEVELS)), dtype=np.int64)
    walk = _Walk(find_blocks(query), query, query.columns, seconds)
    for table in walk.tables():
        matches = query.matching(table)
        at = matches["at"].cast(pa.int64()).to_numpy()
        cells = (at - query.start_ns) // step_ns * len(LEVELS) + matches["level"].to_numpy()
        totals += np.bincount(cells, minlength=totals.size).reshape(totals.shape)
    return Histogram(
        start_ns=query.start_ns,
        step_ns=step_ns,
        counts={level: totals[:, place].tolist() for place, level in enumerate(LEVELS)},
        is_complete=walk.is_complete,
    )


def _first(
    lines: list[FoundLine], table: pa.Table, query: LogQuery, wanted: int
) -> list[FoundLine]:
    """Return the first lines in the order of a query, of those before and those of a table."""
    order = "ascending" if query.is_oldest_first else "descending"
    ordered = table.sort_by([("at", order), ("sequence", order)]).slice(0, wanted)
    merged = {line.id: line for line in [*lines, *_lines_of(ordered)]}.values()
    return sorted(merged, key=_key, reverse=not query.is_oldest_first)[:wanted]


def _key(line: FoundLine) -> tuple[object, ...]:
    return tuple(getattr(line, name) for name in _ORDER)


def _is_before(line: FoundLine, frontier: int | None, query: LogQuery) -> bool:
    """Return whether no line to come is before this one, or at its time."""
    if frontier is None:
        return True
    return (line.at_ns if query.is_oldest_first else -line.at_ns) < frontier


def _lines_of(table: pa.Table) -> Iterator[FoundLine]:
    at = table["at"].cast(pa.int64()).to_pylist()
    for at_ns, row in zip(at, table.drop_columns(["at"]).to_pylist(), strict=True):
        values = (at_ns, row["sequence"], row["source"], row["appliance"], row["job"], row["text"])
        digest = hashlib.blake2b(repr(values).encode(), digest_size=9).hexdigest()
        source, level = Source(row.pop("source")), LEVELS[row.pop("level")]
        yield FoundLine(id=digest, at_ns=at_ns, source=source, level=level, **row)


def _page(query: LogQuery, lines: list[FoundLine], skipped: int, walk: _Walk) -> LogLines:
    if query.cursor is not None:
        same = [line for line in lines if line.at_ns == query.cursor.at_ns]
        others = [line for line in lines if line.at_ns != query.cursor.at_ns]
        lines = [*same[skipped:], *others]
    page, following = lines[: query.limit], None
    if page and len(lines) > query.limit:
        last_ns = page[-1].at_ns
        delivered = sum(line.at_ns == last_ns for line in page)
        is_same = query.cursor is not None and query.cursor.at_ns == last_ns
        following = Cursor(last_ns, delivered + (skipped if is_same else 0))
        if following.delivered > MAX_DELIVERED:
            following = Cursor(last_ns + (1 if query.is_oldest_first else -1), 0)
            walk.problems.append(
                f"More than {MAX_DELIVERED:,} lines have the same time; the others are left out."
            )
    elif not walk.is_complete and walk.frontier is not None:
        at_ns = walk.frontier if query.is_oldest_first else -walk.frontier
        is_same = query.cursor is not None and query.cursor.at_ns == at_ns
        following = Cursor(at_ns, skipped if is_same else 0)
    return LogLines(
        lines=page,
        next=str(following) if following else None,
        is_complete=walk.is_complete,
        problems=tuple(walk.problems),
    )

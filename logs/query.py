"""What a search asks for."""

import base64
import binascii
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

import pyarrow as pa

from core.clock import NS_PER_SECOND, to_ns
from core.errors import InvalidInputError
from logs import arrow
from logs.lines import NUMBER_OF_LEVEL, Source
from logs.terms import Terms, parse_terms
from protocol.lines import LogLevel

MAX_RANK = 2**31 - 1
MAX_LIMIT = 1000
# Of the year 2262. Sources look a little further than a query, which must fit into 64 bits, too.
LATEST_NS = 2**63 - 1 - 3600 * NS_PER_SECOND


MAX_DELIVERED = 100_000
"""Of lines at exactly the same time: a page reads those again that were delivered before it."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ends: a time, and how many lines of exactly that time were delivered."""

    at_ns: int
    delivered: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor of its text form.

        Raises:
            InvalidInputError: it is not one.
        """
        try:
            decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
            at_ns, _, delivered = decoded.partition(":")
            cursor = cls(int(at_ns), int(delivered))
        except (ValueError, binascii.Error):
            cursor = None
        is_plausible = cursor is not None and (
            abs(cursor.at_ns) < 2**63 and 0 <= cursor.delivered <= MAX_DELIVERED
        )
        if cursor is None or not is_plausible:
            problem = "is not the `next` of a page. Start again without it"
            raise InvalidInputError(f"after: {problem}.", errors={"after": [problem]})
        return cursor

    def __str__(self) -> str:
        text = f"{self.at_ns}:{self.delivered}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines to find.

    Attributes:
        start_ns: time of the first, in nanoseconds since 1970.
        end_ns: time after the last.
        terms: what the lines have.
        sources: where they come from.
        minimum_level: the least level.
        appliance_id: of their appliance; empty for any.
        job_id: of their job, and of all members if it is the first of a gang; empty for any.
        rank: of the member of the gang, of which the job is the first; None for all.
        unit: of the program, or the stream, that wrote them; empty for any.
        is_oldest_first: whether the first line is the oldest.
        limit: number of lines of a page.
        cursor: where the page before ended.
    """

    start_ns: int
    end_ns: int
    terms: Terms = field(default_factory=Terms)
    sources: frozenset[Source] = frozenset(Source)
    minimum_level: LogLevel = LogLevel.DEBUG
    appliance_id: str = ""
    job_id: str = ""
    rank: int | None = None
    unit: str = ""
    is_oldest_first: bool = False
    limit: int = 100
    cursor: Cursor | None = None

    @classmethod
    def between(cls, since: datetime, until: datetime, search: str = "") -> Self:
        """Return a query for the lines of a time range.

        Raises:
            InvalidInputError: the range is empty, or the search can't be parsed.
        """
        if since >= until:
            problem = "must be before `until`"
            raise InvalidInputError(f"since: {problem}.", errors={"since": [problem]})
        start_ns, end_ns = map(bounded_ns, (to_ns(since), to_ns(until)))
        return cls(start_ns=start_ns, end_ns=end_ns, terms=parse_terms(search))

    def from_cursor(self) -> "LogQuery":
        """Return the query with the part of its range that the pages before did not have."""
        if self.cursor is None:
            return self
        if self.is_oldest_first:
            return replace(self, start_ns=max(self.start_ns, self.cursor.at_ns))
        return replace(self, end_ns=min(self.end_ns, self.cursor.at_ns + 1))

    @property
    def columns(self) -> list[str]:
        """The columns that decide whether a line matches."""
        names = ["at", "level"]
        names += ["appliance"] if self.appliance_id else []
        names += ["unit"] if self.unit else []
        return [*names, *(["text"] if self.terms.parts else [])]

    def matching(self, lines: pa.Table) -> pa.Table:
        """Return the lines that match."""
        at = arrow.pc.cast(lines["at"], pa.int64())
        matches = arrow.pc.and_(
            arrow.pc.greater_equal(at, self.start_ns), arrow.pc.less(at, self.end_ns)
        )
        least = NUMBER_OF_LEVEL[self.minimum_level]
        if least:
            matches = arrow.pc.and_(matches, arrow.pc.greater_equal(lines["level"], least))
        if self.appliance_id:
            matches = arrow.pc.and_(matches, arrow.pc.equal(lines["appliance"], self.appliance_id))
        if self.unit:
            matches = arrow.pc.and_(matches, arrow.pc.equal(lines["unit"], self.unit))
        return self.terms.matching(lines.filter(matches))


def bounded_ns(time_ns: int) -> int:
    """Return a time, or the nearest one that a line can have."""
    return min(max(time_ns, 0), LATEST_NS)

"""The lines around a line: of the same job, the same appliance, or the same kind of events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.clock import NS_PER_SECOND
from logs.lines import Source
from logs.query import LogQuery, bounded_ns
from logs.search import FindBlocks, FoundLine, search

# A line further away is not about the same.
REACH_NS = 24 * 3600 * NS_PER_SECOND
MAX_AROUND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a line is, as a search returns it."""

    source: Source
    at_ns: int
    sequence: int
    appliance_id: str = ""
    job_id: str = ""


def lines_around(place: Place, find_blocks: FindBlocks, *, count: int) -> Sequence[FoundLine]:
    """Return up to `count` lines before a line, itself, and as many after it, oldest first."""
    query = LogQuery(
        start_ns=bounded_ns(place.at_ns - REACH_NS),
        end_ns=bounded_ns(place.at_ns + 1),
        sources=frozenset({place.source}),
        # Of an attempt that was retried elsewhere, the job has the lines of both appliances.
        appliance_id="" if place.job_id else place.appliance_id,
        job_id=place.job_id,
        # Lines of the same moment that follow are sorted out below.
        limit=count + MAX_AROUND,
    )
    before = search(query, find_blocks).lines
    later = replace(
        query,
        start_ns=bounded_ns(place.at_ns),
        end_ns=bounded_ns(place.at_ns + REACH_NS),
        is_oldest_first=True,
    )
    after = search(later, find_blocks).lines
    here = (place.at_ns, place.sequence)
    earlier = [line for line in before if (line.at_ns, line.sequence) <= here][: count + 1]
    following = [line for line in after if (line.at_ns, line.sequence) > here][:count]
    return [*reversed(earlier), *following]

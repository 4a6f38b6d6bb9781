"""Chunks: a scan cut into whole hours or days, by the extent of what it would yield.

Moving and exporting walk a store chunk by chunk; the extent says where to begin and end, and how
much there is.
"""

from collections.abc import Iterator
from dataclasses import replace

from core.clock import NS_PER_SECOND
from timeseries.store import Extent, ScanQuery

HOUR_NS = 3600 * NS_PER_SECOND
_DAY_NS = 24 * HOUR_NS
_SMALL_DAY_POINTS = 100_000


def chunks(query: ScanQuery, extent: Extent) -> Iterator[ScanQuery]:
    """Yield the query cut into the whole hours of an extent, or its days where those are small."""
    end_ns = min(query.end_ns, -(-extent.end_ns // HOUR_NS) * HOUR_NS)
    start_ns = max(query.start_ns, extent.start_ns // HOUR_NS * HOUR_NS)
    days = max(1, (end_ns - start_ns) // _DAY_NS)
    width_ns = _DAY_NS if extent.points <= days * _SMALL_DAY_POINTS else HOUR_NS
    while start_ns < end_ns:
        next_ns = min(start_ns - start_ns % width_ns + width_ns, end_ns)
        yield replace(query, start_ns=start_ns, end_ns=next_ns)
        start_ns = next_ns

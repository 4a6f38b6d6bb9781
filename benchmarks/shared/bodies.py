"""Bodies that are made before a load and sent by it: gzipped as agents send them, in a file.

A driver that reads them spends nothing on making them.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from struct import Struct

from benchmarks.shared.fleet import LINES_OF_A_TICK, VALUES_OF_A_TICK, Fleet
from collector.sending.write_targets import COMPRESSION_LEVEL
from core.clock import NS_PER_SECOND

INTERVAL_SECONDS = 10
_HEAD = Struct("=II")  # sender, length

Batches = Iterable[tuple[int, Sequence[str]]]
"""Lines, each batch with its sender's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bodies:
    """Bodies in a file, in the order in which they are sent."""

    path: Path
    count: int
    lines: int
    plain_bytes: int
    sent_bytes: int

    @property
    def values(self) -> int:
        """The number of values in the bodies, on average over whole ticks."""
        return self.lines * VALUES_OF_A_TICK // LINES_OF_A_TICK


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """The part of the fleet's life that is made into bodies."""

    appliances: int
    numbers: range
    start_ns: int

    def batches(self) -> Iterator[tuple[int, list[str]]]:
        """Yield what each appliance sends at each tick; the sender is the appliance."""
        fleet = Fleet()
        for tick in self.numbers:
            time_ns = self.start_ns + tick * INTERVAL_SECONDS * NS_PER_SECOND
            for appliance in range(self.appliances):
                yield appliance, fleet.lines(appliance, tick=tick, time_ns=time_ns)

    def relayed(self, *, lines_of_a_batch: int, senders: int) -> Iterator[tuple[int, list[str]]]:
        """Yield full batches that relays send, each for its share of the fleet; in turn."""
        waiting: list[list[str]] = [[] for _ in range(senders)]
        for appliance, lines in self.batches():
            sender = appliance * senders // self.appliances
            waiting[sender] += lines
            if len(waiting[sender]) >= lines_of_a_batch:
                yield sender, waiting[sender][:lines_of_a_batch]
                waiting[sender] = waiting[sender][lines_of_a_batch:]
        yield from ((sender, lines) for sender, lines in enumerate(waiting) if lines)


def write_bodies(path: Path, batches: Batches) -> Bodies:
    """Write batches of lines as bodies."""
    count = line_count = plain_bytes = sent_bytes = 0
    with path.open("wb") as file:
        for sender, lines in batches:
            plain = ("\n".join(lines) + "\n").encode()
            body = gzip.compress(plain, COMPRESSION_LEVEL)
            file.write(_HEAD.pack(sender, len(body)) + body)
            count += 1
            line_count += len(lines)
            plain_bytes += len(plain)
            sent_bytes += len(body)
    return Bodies(
        path=path, count=count, lines=line_count, plain_bytes=plain_bytes, sent_bytes=sent_bytes
    )


def read_bodies(paths: Sequence[Path]) -> Iterator[tuple[int, bytes]]:
    """Yield the bodies of files, each with its sender's number."""
    for path in paths:
        with path.open("rb") as file:
            while head := file.read(_HEAD.size):
                sender, length = _HEAD.unpack(head)
                yield sender, file.read(length)


def write_small_bodies(folder: Path, span: Ticks, *, processes: int = 2) -> list[Bodies]:
    """Write what each appliance sends at each tick, by several processes; a file for each."""
    share = -(-len(span.numbers) // processes)
    parts = [
        (
            folder / f"small-{first}.bodies",
            Ticks(
                appliances=span.appliances,
                numbers=span.numbers[first : first + share],
                start_ns=span.start_ns,
            ),
        )
        for first in range(0, len(span.numbers), share)
    ]
    with get_context("spawn").Pool(processes) as pool:
        return pool.starmap(_write_small, parts)


def _write_small(path: Path, span: Ticks) -> Bodies:
    return write_bodies(path, span.batches())

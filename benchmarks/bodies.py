"""Bodies that are made before a load and sent by it: gzipped as agents send them, in one file.

An index beside the file says for each body where it lies and who sends it, so that a driver maps
the file and spends nothing on making bodies.
"""

import gzip
import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.fleet import GPUS, LINES_OF_A_TICK, VALUES_OF_A_TICK, Fleet
from collector.sending.write_targets import COMPRESSION_LEVEL

NS_PER_SECOND = 10**9
SEED = 4
_COLUMNS = 3  # offset, length, sender


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
    first_tick: int = 0
    ticks: int
    interval_seconds: int = 10
    start_ns: int

    def time_ns(self, tick: int) -> int:
        """Return the time of a tick."""
        return self.start_ns + tick * self.interval_seconds * NS_PER_SECOND

    def all(self) -> range:
        """Return the numbers of the ticks."""
        return range(self.first_tick, self.first_tick + self.ticks)


def write_bodies(path: Path, batches: Iterable[tuple[int, Sequence[str]]]) -> Bodies:
    """Write batches of lines, each with its sender's number, as bodies."""
    index, offset, lines, plain_bytes = array("Q"), 0, 0, 0
    with path.open("wb") as file:
        for sender, batch in batches:
            plain = ("\n".join(batch) + "\n").encode()
            body = gzip.compress(plain, COMPRESSION_LEVEL)
            file.write(body)
            index.extend((offset, len(body), sender))
            offset += len(body)
            lines += len(batch)
            plain_bytes += len(plain)
    with index_path(path).open("wb") as file:
        index.tofile(file)
    return Bodies(
        path=path,
        count=len(index) // _COLUMNS,
        lines=lines,
        plain_bytes=plain_bytes,
        sent_bytes=offset,
    )


def small_batches(span: Ticks) -> Iterator[tuple[int, list[str]]]:
    """Yield what each appliance sends at each tick; the sender is the appliance."""
    fleet = Fleet(seed=SEED)
    for tick in span.all():
        for appliance in range(span.appliances):
            yield appliance, fleet.lines(appliance, tick=tick, time_ns=span.time_ns(tick))


def large_batches(
    span: Ticks, *, lines_of_a_batch: int, senders: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield full batches that relays send, each for its share of the fleet; in turn."""
    fleet = Fleet(seed=SEED)
    waiting: list[list[str]] = [[] for _ in range(senders)]
    for tick in span.all():
        for appliance in range(span.appliances):
            sender = appliance * senders // span.appliances
            lines = waiting[sender]
            lines += fleet.lines(appliance, tick=tick, time_ns=span.time_ns(tick))
            if len(lines) >= lines_of_a_batch:
                yield sender, lines[:lines_of_a_batch]
                waiting[sender] = lines[lines_of_a_batch:]
    yield from ((sender, lines) for sender, lines in enumerate(waiting) if lines)


def gpu_batches(span: Ticks, *, ticks_of_a_batch: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the GPUs' lines of some ticks of each appliance in turn, oldest ticks first."""
    fleet = Fleet(seed=SEED)
    numbers = span.all()
    for first in range(numbers.start, numbers.stop, ticks_of_a_batch):
        ticks = range(first, min(first + ticks_of_a_batch, numbers.stop))
        for appliance in range(span.appliances):
            lines: list[str] = []
            for tick in ticks:
                lines += fleet.gpu_lines(appliance, tick=tick, time_ns=span.time_ns(tick))
            yield appliance, lines


def write_small_bodies(folder: Path, span: Ticks, *, processes: int = 2) -> list[Bodies]:
    """Write what each appliance sends at each tick, by some processes; a file for each."""
    share = -(-span.ticks // processes)
    parts = [
        Ticks(
            appliances=span.appliances,
            first_tick=first,
            ticks=min(share, span.first_tick + span.ticks - first),
            interval_seconds=span.interval_seconds,
            start_ns=span.start_ns,
        )
        for first in range(span.first_tick, span.first_tick + span.ticks, share)
    ]
    paths = [folder / f"small-{number}.bodies" for number in range(len(parts))]
    with get_context("spawn").Pool(processes) as pool:
        return pool.starmap(_write_small, list(zip(paths, parts, strict=True)))


def _write_small(path: Path, span: Ticks) -> Bodies:
    return write_bodies(path, small_batches(span))


@contextmanager
def opened(path: Path) -> Iterator[tuple[memoryview, list[tuple[int, int, int]]]]:
    """Map a file of bodies; give it and its index of offsets, lengths and senders."""
    index = array("Q")
    with index_path(path).open("rb") as file:
        index.frombytes(file.read())
    rows = list(zip(index[0::3], index[1::3], index[2::3], strict=True))
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view, rows


def index_path(path: Path) -> Path:
    """Return where the index of a file of bodies lies."""
    return path.with_suffix(".index")


def gpu_lines_of(span: Ticks) -> int:
    """Return how many lines a span has of GPUs alone."""
    return span.ticks * span.appliances * GPUS

"""A long outage, played at full speed: ticks of a made-up appliance go into the real buffer.

A pool of distinct ticks is made once and gone through again and again, with the time of each plugin
put in anew. The pool is far larger than a segment, so no compressor meets the same tick twice.
"""

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.appliance import Appliance
from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from core.clock import to_ns
from timeseries.lineprotocol.encode import encode

TIMESTAMP = re.compile(rb" (\d{19})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TickTemplate:
    """The lines of one tick without their times.

    Attributes:
        pieces: the text between the times.
        offsets_ns: each time, counted from the tick's own.
    """

    pieces: tuple[bytes, ...]
    offsets_ns: tuple[int, ...]
    samples: int

    @property
    def points(self) -> int:
        """The number of lines."""
        return len(self.offsets_ns)

    def frame(self, at: datetime) -> Frame:
        """Return the tick as it would be read at an instant."""
        tick_ns = to_ns(at)
        parts = [self.pieces[0]]
        for offset_ns, piece in zip(self.offsets_ns, self.pieces[1:], strict=True):
            parts += (b" %d" % (tick_ns + offset_ns), piece)
        newest_ns = tick_ns + max(self.offsets_ns)
        return Frame(b"".join(parts).rstrip(b"\n"), self.points, newest_ns)


class SetClock:
    """A clock that stands where it is put."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The contents of a buffer after an outage."""

    ticks: int
    points: int
    samples: int
    plain_bytes: int
    disk_bytes: int
    dropped_points: int
    append_milliseconds: float


def tick_templates(count: int, *, seed: int, interval_seconds: float) -> list[TickTemplate]:
    """Return so many distinct ticks of one appliance, one after the other."""
    started_at = datetime.fromisoformat("2026-01-05T08:00:00+00:00")
    with TemporaryDirectory(prefix="vedette-bench-") as scratch:
        appliance = Appliance(
            seed=seed,
            scratch=Path(scratch),
            started_at=started_at,
            interval_seconds=interval_seconds,
        )
        # The appliance has used up one interval for the readings that rates begin with.
        first = started_at + timedelta(seconds=interval_seconds)
        templates = [
            _template(appliance, first + turn * timedelta(seconds=interval_seconds))
            for turn in range(1, count + 1)
        ]
        appliance.close()
        return templates


def fill(
    buffer: DiskBuffer,
    clock: SetClock,
    templates: list[TickTemplate],
    *,
    ticks: int,
    interval_seconds: float,
) -> Filled:
    """Append one tick after the other, the clock moved on with each."""
    points = samples = plain_bytes = 0
    began = time.process_time()
    for turn in range(ticks):
        clock.now += timedelta(seconds=interval_seconds)
        template = templates[turn % len(templates)]
        frame = template.frame(clock.now)
        buffer.append(frame)
        points += frame.points
        samples += template.samples
        plain_bytes += len(frame.payload)
    return Filled(
        ticks=ticks,
        points=points,
        samples=samples,
        plain_bytes=plain_bytes,
        disk_bytes=buffer.size_bytes,
        dropped_points=buffer.losses.dropped_points,
        append_milliseconds=1000 * (time.process_time() - began) / ticks,
    )


def _template(appliance: Appliance, tick_at: datetime) -> TickTemplate:
    points = list(appliance.tick())
    lines, tick_ns = encode(points), to_ns(tick_at)
    times = [int(text) for text in TIMESTAMP.findall(lines)]
    return TickTemplate(
        pieces=tuple(TIMESTAMP.split(lines)[::2]),  # what the groups caught is left out
        offsets_ns=tuple(time_ns - tick_ns for time_ns in times),
        samples=sum(len(point.fields) for point in points),
    )

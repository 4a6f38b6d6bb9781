"""Any sequence of appends, reads, acknowledgements and restarts loses and reorders nothing."""

import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from collector.buffering.buffer import Batch, DiskBuffer
from collector.buffering.frames import Frame
from core.clock import to_ns
from tests.unit.collector.hand_clock import HandClock

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 60)),
        st.tuples(st.just("read"), st.integers(1, 200)),
        st.tuples(st.just("acknowledge"), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, 5, 61])),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


class Played:
    """A buffer under a sequence of operations, and what must be true of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = HandClock()
        self._buffer = self._open()
        self._batch: Batch | None = None
        self._appended = 0
        self._arrived: list[int] = []
        self._points: dict[int, int] = {}

    def do(self, operation: str, argument: int) -> None:
        getattr(self, f"_{operation}")(argument)
        waiting = sum(self._points.values())
        assert self._buffer.points == waiting

    def finish(self) -> None:
        """Drain; everything has arrived, and each once."""
        while self._buffer.points:
            self._clock.advance(1)
            self._read(10_000)
            self._acknowledge(0)
        assert sorted(self._arrived) == list(range(self._appended))
        self._buffer.close()

    def _open(self) -> DiskBuffer:
        return DiskBuffer(
            self._folder,
            max_bytes=8_000,
            max_age_seconds=10**6,
            clock=self._clock,
            backlog_points_per_second=1000,
            monotonic=self._clock.seconds,
        )

    def _append(self, points: int) -> None:
        number = self._appended
        self._buffer.append(Frame(b"m v=%d" % number, points, to_ns(self._clock.now)))
        self._points[number] = points
        self._appended += 1

    def _read(self, max_points: int) -> None:
        self._batch = self._buffer.read(max_points=max_points)
        if self._batch is not None:
            numbers = self._numbers(self._batch)
            assert numbers == sorted(numbers)
            waiting = sorted(self._points)
            if not self._batch.is_live:
                assert numbers == waiting[: len(numbers)]
            else:
                at = waiting.index(numbers[0])
                assert numbers == waiting[at : at + len(numbers)]

    def _acknowledge(self, _: int) -> None:
        if self._batch is not None:
            self._buffer.acknowledge(self._batch)
            for number in self._numbers(self._batch):
                self._arrived.append(number)
                del self._points[number]
            self._batch = None

    def _wait(self, seconds: int) -> None:
        self._clock.advance(seconds)

    def _restart(self, _: int) -> None:
        self._batch = None
        self._buffer.close()
        self._buffer = self._open()

    @staticmethod
    def _numbers(batch: Batch) -> list[int]:
        return [int(frame.payload.removeprefix(b"m v=")) for frame in batch.frames]


@hypothesis_settings(max_examples=150, deadline=None)
@example([("append", 1), ("read", 1), ("wait", 61), ("append", 1), ("acknowledge", 0)])
@given(OPERATIONS)
def test_nothing_is_lost_doubled_or_reordered(operations: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = Played(Path(folder) / "buffer")
        for operation, argument in operations:
            played.do(operation, argument)
        played.finish()

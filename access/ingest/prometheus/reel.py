"""Series messages of a sender in the order in which it sent them.

A sender goes through its series in the same order every time. So once the labels of a series are
found, what follows is compared with what followed the last time, all of it at once: only values and
times may differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 8 * 1024 * 1024
"""Of the messages of one sender; then they are collected anew."""
SAMPLE_BYTES = 18
VALUE_AT, TIME_KEY_AT, TIME_AT = 3, 11, 12
"""Where the value, the key of the time and the time begin in a sample."""
_TIME_BYTES, _WORD_BYTES = SAMPLE_BYTES - TIME_AT, 8
# Of the time, which ends a word of eight bytes, five bytes continue, and one does not.
_TIME_SHIFT = 8 * (_WORD_BYTES - _TIME_BYTES)
_TIME_MASK = int.from_bytes(b"\x80" * _TIME_BYTES, "little") << _TIME_SHIFT
_TIME_PATTERN = int.from_bytes(b"\x80" * (_TIME_BYTES - 1), "little") << _TIME_SHIFT
_SEVEN_BITS = 0x7F
_FIRST_BYTES = 4096
_LEAST_MESSAGES = 8
Places = NDArray[np.int64]
Span = tuple[int, int, int]
"""Where a message starts and ends, and the number of its series."""


def words(body: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the eight bytes from each position on as a number, without copying any."""
    return np.ndarray(max(0, len(body) - _WORD_BYTES + 1), dtype="<u8", buffer=body, strides=(1,))


def read_samples(
    body: NDArray[np.uint8], starts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return values and times, in milliseconds, of usual samples."""
    at = words(body)
    values = at[starts + VALUE_AT].view("<f8")
    packed = at[starts + (SAMPLE_BYTES - _WORD_BYTES)] >> np.uint64(_TIME_SHIFT)
    times_ms = packed & np.uint64(_SEVEN_BITS)
    for byte in range(1, _TIME_BYTES):
        # The bits above the seven of each byte before are left out.
        times_ms |= (packed >> np.uint64(byte)) & np.uint64(_SEVEN_BITS << 7 * byte)
    return values, times_ms.view(np.int64)


def first_difference(
    body: NDArray[np.uint8],
    at: int,
    octets: NDArray[np.uint8],
    start: int,
    is_fixed: NDArray[np.bool_],
) -> int:
    """Return where in `octets`, from `start` on, fixed ones differ from the body from `at` on.

    The parts that are compared grow while they agree.
    """
    size, compared = _FIRST_BYTES, 0
    length = min(len(body) - at, len(octets) - start)
    while compared < length:
        part = slice(compared, min(compared + size, length))
        remembered = slice(start + part.start, start + part.stop)
        differs = body[at + part.start : at + part.stop] != octets[remembered]
        differs &= is_fixed[remembered]
        if differs.any():
            return start + part.start + int(np.argmax(differs))
        compared, size = part.stop, 8 * size
    return start + length


@dataclass(frozen=True, slots=True)
class Reel:
    """Messages that each end with a usual sample, one behind the other. Never changed in place.

    Attributes:
        octets: the messages.
        is_fixed: which of their bytes are neither of a value nor of a time.
        ends: where each message ends.
        numbers: the number of each one's series.
        place_of: the last message of each series.
    """

    octets: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    is_fixed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    ends: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    numbers: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    place_of: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.octets)

    def follow(
        self, body: NDArray[np.uint8], at: int, number: int
    ) -> tuple[Places, NDArray[np.int32]]:
        """Return the messages from a position on that follow a series as they did before.

        Args:
            body: what is read.
            at: where the message behind that of the series begins.
            number: the series.

        Returns:
            The ends of the messages, and the numbers of their series.
        """
        place = self.place_of.get(number)
        if place is None:
            return self.ends[:0], self.numbers[:0]
        start = int(self.ends[place])
        shift = at - start
        stop = first_difference(body, at, self.octets, start, self.is_fixed)
        last = int(np.searchsorted(self.ends, stop, side="right"))
        ends = self.ends[place + 1 : last] + shift
        is_usual = words(body)[ends - _WORD_BYTES] & _TIME_MASK == _TIME_PATTERN
        if not is_usual.all():
            ends = ends[: int(np.argmin(is_usual))]
        return ends, self.numbers[place + 1 : place + 1 + len(ends)]

    def extended(self, body: NDArray[np.uint8], spans: Sequence[Span]) -> "Reel":
        """Return a reel with more messages, in the order of the body."""
        size = sum(end - start for start, end, _ in spans)
        if len(spans) < _LEAST_MESSAGES or size > MAX_BYTES:
            return self
        former = self if len(self) + size <= MAX_BYTES else Reel()
        ends = np.cumsum([end - start for start, end, _ in spans])
        is_fixed = np.ones(size, dtype=np.bool_)
        samples = (ends - SAMPLE_BYTES)[:, None]
        is_fixed[samples + np.arange(VALUE_AT, TIME_KEY_AT)] = False
        is_fixed[samples + np.arange(TIME_AT, SAMPLE_BYTES)] = False
        numbers = np.array([number for _, _, number in spans], dtype=np.int32)
        places = zip(numbers.tolist(), count(len(former.ends)), strict=False)
        return Reel(
            np.concatenate([former.octets, *(body[start:end] for start, end, _ in spans)]),
            np.concatenate([former.is_fixed, is_fixed]),
            np.concatenate([former.ends, ends + len(former)]),
            np.concatenate([former.numbers, numbers]),
            {**former.place_of, **dict(places)},
        )

"""Frames for tests, buffers that are opened again, and disks that refuse."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NoReturn

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from core.clock import to_ns
from tests.unit.collector.hand_clock import HandClock

START_NS = to_ns(HandClock().now)


def frame(text: str, *, points: int = 1, time_ns: int = START_NS) -> Frame:
    return Frame(text.encode(), points, time_ns)


def reopened(tmp_path: Path, clock: HandClock, *, max_bytes: int = 1_000_000) -> DiskBuffer:
    return DiskBuffer(tmp_path / "buffer", max_bytes=max_bytes, max_age_seconds=3600, clock=clock)


def refusing(code: int) -> Callable[..., NoReturn]:
    """Return a call that fails as a broken disk's does."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return refuse


def noise(number: int) -> str:
    """Return a kilobyte that compression does not shorten much."""
    return f"m v={number} " + Random(number).randbytes(700).hex()  # noqa: S311 - repeatable


def drain(buffer: DiskBuffer) -> list[str]:
    texts = []
    while (batch := buffer.read()) is not None:
        texts += [sent.payload.decode() for sent in batch.frames]
        buffer.acknowledge(batch)
    return texts

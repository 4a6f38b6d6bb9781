"""One test of the line: warm up, then time as many bytes as the line moves in a few seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from plugins.base import Transfer

# Opens the connection, which is not what is timed.
FIRST_BYTES = 1
# Lets the connection find its speed, and tells how much it can move.
WARM_UP_BYTES = 256 * 1024
# A slower line is timed with fewer bytes.
LONGEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a test found; None for a direction that was not asked for."""

    download_bytes_per_second: float | None
    upload_bytes_per_second: float | None
    transferred_bytes: int


def measure(
    transfer: Transfer,
    *,
    download_bytes: int,
    upload_bytes: int,
    seconds: Callable[[], float] = time.perf_counter,
) -> Speeds:
    """Time both directions, one after the other.

    Args:
        transfer: the line.
        download_bytes, upload_bytes: how much each direction moves at most, after its warm-up of
            256 KiB; 0 leaves it out.
        seconds: a clock for durations.

    Raises:
        PluginError: the access point did not play along.
    """
    moved_bytes = FIRST_BYTES
    transfer.download(FIRST_BYTES)
    speeds: list[float | None] = []
    for move, most_bytes in ((transfer.download, download_bytes), (transfer.upload, upload_bytes)):
        if most_bytes == 0:
            speeds.append(None)
            continue
        warm_up_bytes = min(WARM_UP_BYTES, most_bytes)
        estimate = _speed(move, warm_up_bytes, seconds)
        size_bytes = min(most_bytes, max(warm_up_bytes, int(LONGEST_SECONDS * estimate)))
        speeds.append(_speed(move, size_bytes, seconds))
        moved_bytes += warm_up_bytes + size_bytes
    download, upload = speeds
    return Speeds(
        download_bytes_per_second=download,
        upload_bytes_per_second=upload,
        transferred_bytes=moved_bytes,
    )


def _speed(move: Callable[[int], None], size_bytes: int, seconds: Callable[[], float]) -> float:
    began = seconds()
    move(size_bytes)
    return size_bytes / max(seconds() - began, 1e-9)

"""Speed of the connection to the access point, tested a few times a day."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Annotated

from msgspec import Meta

from core.clock import to_ns
from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginTraits,
    PluginUnavailableError,
    Transfer,
    gauges,
    present,
    rates,
)
from protocol.transfer import MAX_TRANSFER_BYTES
from timeseries.points import Point

MEBIBYTE = 2**20
Size = Annotated[int, Meta(ge=0, le=MAX_TRANSFER_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedtestConfig:
    """Size and frequency of tests.

    Attributes:
        download_bytes: maximum bytes to download; 0 skips the download.
        upload_bytes: maximum bytes to upload; 0 skips the upload.
        test_every_seconds: interval between tests.
        first_test_within_seconds: the first test runs at a random time within this many seconds, so
            that a fleet does not test all at once.
    """

    download_bytes: Size = 4 * MEBIBYTE
    upload_bytes: Size = 4 * MEBIBYTE
    test_every_seconds: Annotated[float, Meta(ge=60)] = 6 * 3600.0
    first_test_within_seconds: Annotated[float, Meta(ge=0)] = 900.0


class SpeedtestPlugin(BasePlugin):
    """One point for each test; most readings return none."""

    name = "speedtest"
    config_class = SpeedtestConfig
    traits = PluginTraits(interval_seconds=60.0, time_limit_seconds=60.0, own_thread=True)
    metrics = (
        *rates(
            download_bytes_per_second=(
                "bytes per second",
                "download speed from the access point",
            ),
            upload_bytes_per_second=("bytes per second", "upload speed to the access point"),
        ),
        *gauges(transferred_bytes=("bytes", "bytes transferred by the test, including warm-up")),
    )

    def __init__(self, config: SpeedtestConfig, context: PluginContext) -> None:
        self._config = config
        self._transfer = context.transfer
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._due_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Run a test if it is due; a failed test is due again at the next reading."""
        if self._transfer is None:
            raise PluginUnavailableError("there is no portal to test the connection to")
        if not self._is_due(now):
            return []
        try:
            speeds = measure(
                self._transfer,
                download_bytes=self._config.download_bytes,
                upload_bytes=self._config.upload_bytes,
            )
        finally:
            self._transfer.close()
        self._due_at = now + timedelta(seconds=self._config.test_every_seconds)
        fields = {
            "download_bytes_per_second": speeds.download_bytes_per_second,
            "upload_bytes_per_second": speeds.upload_bytes_per_second,
            "transferred_bytes": speeds.transferred_bytes,
        }
        return [Point("speedtest", {}, present(fields), to_ns(now))]

    def close(self) -> None:
        """Close the connection."""
        if self._transfer is not None:
            self._transfer.close()

    def _is_due(self, now: datetime) -> bool:
        """Return whether a test is due, also after the clock was set back."""
        if self._due_at is None:
            delay_seconds = self._random.random() * self._config.first_test_within_seconds
            self._due_at = now + timedelta(seconds=delay_seconds)
        longest = timedelta(
            seconds=max(self._config.test_every_seconds, self._config.first_test_within_seconds)
        )
        return now >= self._due_at or self._due_at - now > longest


# Opens the connection before the measurement.
FIRST_BYTES = 1
# Warm-up: also estimates how much to transfer.
WARM_UP_BYTES = 256 * 1024
# Slower connections are measured with fewer bytes.
LONGEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Result of a test; None for a skipped direction."""

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
    """Measure both directions, one after the other.

    Args:
        transfer: the connection.
        download_bytes, upload_bytes: maximum bytes of each direction, after a warm-up of 256 KiB; 0
            skips it.
        seconds: a clock for durations.

    Raises:
        PluginError: the transfer failed.
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

"""How fast the line to the access point is, tested a few times a day with a bounded effort."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Annotated, ClassVar

from msgspec import Meta

from core.clock import to_ns
from jobqueue.executors.wire import MAX_TRANSFER_BYTES
from plugins.base import (
    Metric,
    PluginContext,
    PluginTraits,
    PluginUnavailableError,
    gauges,
    present,
    rates,
)
from plugins.speedtest.measure import measure
from timeseries.points import Point

MEBIBYTE = 2**20
Size = Annotated[int, Meta(ge=0, le=MAX_TRANSFER_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedtestConfig:
    """How much a test may move, and how often there is one.

    Attributes:
        download_bytes: at most so many are fetched; 0 leaves the download out.
        upload_bytes: at most so many are sent; 0 leaves the upload out.
        test_every_seconds: from one test to the next.
        first_test_within_seconds: the first test comes at a random time within these, so that a
            fleet that is started together does not test together.
    """

    download_bytes: Size = 4 * MEBIBYTE
    upload_bytes: Size = 4 * MEBIBYTE
    test_every_seconds: Annotated[float, Meta(ge=60)] = 6 * 3600.0
    first_test_within_seconds: Annotated[float, Meta(ge=0)] = 900.0


class SpeedtestPlugin:
    """One point for each test; most readings only find that no test is due."""

    name: ClassVar[str] = "speedtest"
    config_class: ClassVar[type] = SpeedtestConfig
    traits: ClassVar[PluginTraits] = PluginTraits(
        interval_seconds=60.0, time_limit_seconds=60.0, own_thread=True
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        *rates(
            {
                "download_bytes_per_second": ("bytes per second", "from the access point to here"),
                "upload_bytes_per_second": ("bytes per second", "from here to the access point"),
            }
        ),
        *gauges({"transferred_bytes": ("bytes", "what the test moved, warm-up included")}),
    )

    def __init__(self, config: SpeedtestConfig, context: PluginContext) -> None:
        self._config = config
        self._transfer = context.transfer
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        self._due_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Test when it is time; a test that fails is due again at the next reading."""
        if self._transfer is None:
            raise PluginUnavailableError("there is no portal whose line could be timed")
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
        """Let the connection go."""
        if self._transfer is not None:
            self._transfer.close()

    def _is_due(self, now: datetime) -> bool:
        """Return whether it is time; a clock that was set back never puts a test off for long."""
        if self._due_at is None:
            delay_seconds = self._random.random() * self._config.first_test_within_seconds
            self._due_at = now + timedelta(seconds=delay_seconds)
        longest = timedelta(
            seconds=max(self._config.test_every_seconds, self._config.first_test_within_seconds)
        )
        return now >= self._due_at or self._due_at - now > longest

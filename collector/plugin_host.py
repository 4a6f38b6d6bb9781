"""The plugin host: reads each plugin at its own interval and keeps going when one fails.

A failing plugin is read ever less often; one that has nothing to read here is asked again every
few minutes, quietly. GPUs that an attempt holds get the tag `job`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from collector.config import AgentConfig, plugin_settings
from plugins.base import Plugin, PluginContext, PluginUnavailableError
from plugins.registry import load_plugin_class
from timeseries.points import Point

log = logging.getLogger(__name__)

UNAVAILABLE_RETRY_SECONDS = 300.0
LONGEST_RETRY_SECONDS = 600.0
SLOW_GATHER_SECONDS = 2.0

GPUHolders = Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class _Scheduled:
    plugin: Plugin
    interval_seconds: float
    due_at: datetime | None = None
    failures: int = 0
    is_unavailable: bool = field(default=False)


class PluginHost:
    """Owns the plugins of one agent. For one thread.

    Args:
        plugins: each plugin with how often it is read, in seconds; see `build_plugins`.
        gpu_holders: gives GPU UUID to the id of the job that holds it.
    """

    def __init__(self, plugins: Iterable[tuple[Plugin, float]], *, gpu_holders: GPUHolders) -> None:
        self._gpu_holders = gpu_holders
        self._scheduled = [_Scheduled(plugin, seconds) for plugin, seconds in plugins]
        self.gather_failures = 0

    @property
    def names(self) -> list[str]:
        """The plugins that this host reads."""
        return [scheduled.plugin.name for scheduled in self._scheduled]

    def gather_due(self, now: datetime) -> list[Point]:
        """Return the readings of every plugin whose time has come."""
        points: list[Point] = []
        for scheduled in self._scheduled:
            if scheduled.due_at is None or _is_due(scheduled, now):
                points += self._gather(scheduled, now)
        return self._with_jobs(points)

    def next_due_at(self, now: datetime) -> datetime:
        """Return when the next plugin is to be read."""
        due = [one.due_at for one in self._scheduled if one.due_at is not None]
        return min(due, default=now + timedelta(seconds=1))

    def close(self) -> None:
        """Close the plugins."""
        for scheduled in self._scheduled:
            scheduled.plugin.close()

    def _gather(self, scheduled: _Scheduled, now: datetime) -> list[Point]:
        plugin, started = scheduled.plugin, time.perf_counter()
        wait_seconds = scheduled.interval_seconds
        points: list[Point] = []
        try:
            points = list(plugin.gather(now))
        except PluginUnavailableError as error:
            wait_seconds = max(wait_seconds, UNAVAILABLE_RETRY_SECONDS)
            if not scheduled.is_unavailable:
                log.info("plugin %s has nothing to read here: %s", plugin.name, error)
            scheduled.is_unavailable = True
        except Exception as error:  # noqa: BLE001 - a foreign plugin may raise anything
            self.gather_failures += 1
            scheduled.failures += 1
            doubled = wait_seconds * 2.0 ** min(scheduled.failures, 16)
            wait_seconds = max(wait_seconds, min(LONGEST_RETRY_SECONDS, doubled))
            log.warning("plugin %s failed, next in %.0f s: %s", plugin.name, wait_seconds, error)
        else:
            scheduled.failures, scheduled.is_unavailable = 0, False
        if (took_seconds := time.perf_counter() - started) > SLOW_GATHER_SECONDS:
            log.warning("plugin %s took %.1f s to read", plugin.name, took_seconds)
        scheduled.due_at = _next_due(scheduled, now, wait_seconds)
        return points

    def _with_jobs(self, points: list[Point]) -> list[Point]:
        holders = self._gpu_holders()
        if not holders:
            return points
        return [
            replace(point, tags={**point.tags, "job": holders[uuid]})
            if (uuid := point.tags.get("uuid", "")) in holders
            else point
            for point in points
        ]


def build_plugins(config: AgentConfig, context: PluginContext) -> Iterable[tuple[Plugin, float]]:
    """Yield the plugins that the configuration wants, each with its interval in seconds.

    Raises:
        ConfigurationError: a plugin's table has faults.
    """
    is_simulated = context.simulation is not None
    for settings in plugin_settings(config):
        plugin_class = load_plugin_class(settings.name)
        default = plugin_class.is_simulated == is_simulated
        if default if settings.enabled is None else settings.enabled:
            interval_seconds = settings.interval_seconds or config.interval_seconds
            yield plugin_class(settings.config, context), interval_seconds


def _is_due(scheduled: _Scheduled, now: datetime) -> bool:
    """Return whether its time has come; also when the clock was set back far before it."""
    assert scheduled.due_at is not None  # noqa: S101 - checked by the caller
    longest = timedelta(seconds=max(LONGEST_RETRY_SECONDS, scheduled.interval_seconds))
    return now >= scheduled.due_at or scheduled.due_at - now > longest


def _next_due(scheduled: _Scheduled, now: datetime, wait_seconds: float) -> datetime:
    """Return the next time on the plugin's own beat; beats that were missed are skipped."""
    wait = timedelta(seconds=wait_seconds)
    planned = scheduled.due_at + wait if scheduled.due_at is not None else now + wait
    is_on_beat = wait_seconds == scheduled.interval_seconds and now < planned <= now + wait
    return planned if is_on_beat else now + wait

"""Scrapes the metrics of programs on this host and near it, as Prometheus does."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import urllib3
from msgspec import Meta

from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginError,
    PluginTraits,
    PluginUnavailableError,
)
from plugins.containers.engine import Engine
from plugins.prometheus.discovery import (
    TargetConfig,
    TargetFiles,
    container_targets,
    static_targets,
)
from plugins.prometheus.relabeling import RelabelRule
from plugins.prometheus.scraping import ScrapeLimits, Target, scrape, target_of
from timeseries.points import Point

log = logging.getLogger(__name__)

MAX_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig(ScrapeLimits):
    """What to scrape, and the limits of each target.

    Attributes:
        targets: see `TargetConfig`.
        files: shell patterns of files with targets, as Prometheus' file_sd has them.
        docker: whether containers that say that they have metrics are scraped.
        relabel: rules for targets.
        metric_relabel: rules for samples.
        max_targets: how many targets are scraped.
    """

    targets: tuple[TargetConfig, ...] = ()
    files: tuple[str, ...] = ()
    docker: bool = True
    relabel: tuple[RelabelRule, ...] = ()
    metric_relabel: tuple[RelabelRule, ...] = ()
    max_targets: Annotated[int, Meta(ge=1)] = 500


class PrometheusPlugin(BasePlugin):
    """A point for each sample of each target, and three about the scrape."""

    name = "prometheus"
    config_class = PrometheusConfig
    traits = PluginTraits(interval_seconds=15.0, time_limit_seconds=60.0, own_thread=True)
    metrics = ()

    def __init__(self, config: PrometheusConfig, context: PluginContext) -> None:
        self._config = config
        self._engine = Engine(context.docker_url)
        self._files = TargetFiles(config.files)
        self._targets: dict[tuple[str, tuple[tuple[str, str], ...]], Target] = {}
        self._pool: urllib3.PoolManager | None = None
        self._threads: ThreadPoolExecutor | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Scrape all targets, several at once."""
        self._discover()
        if not self._targets:
            raise PluginUnavailableError("there are no targets")
        if self._pool is None or self._threads is None:
            self._pool = urllib3.PoolManager(num_pools=self._config.max_targets, maxsize=1)
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="scrape")
        pool, targets = self._pool, list(self._targets.values())
        before = [target.problem for target in targets]

        def scrape_one(target: Target) -> list[Point]:
            rules = self._config.metric_relabel
            return scrape(target, pool, limits=self._config, rules=rules, now=now)

        points = [point for result in self._threads.map(scrape_one, targets) for point in result]
        for target, problem in zip(targets, before, strict=True):
            if target.problem and target.problem != problem:
                log.warning("can't scrape %s: %s", target.url, target.problem)
        return points

    def close(self) -> None:
        """Close connections and threads."""
        self._engine.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.clear()

    def _discover(self) -> None:
        """Find the targets; one that stays keeps what is remembered of it."""
        targets: dict[tuple[str, tuple[tuple[str, str], ...]], Target] = {}
        for labels in self._discovered():
            target = target_of(labels, self._config.relabel)
            if target is not None and len(targets) < self._config.max_targets:
                key = target.url, tuple(sorted(target.labels.items()))
                targets[key] = self._targets.get(key) or target
        self._targets = targets

    def _discovered(self) -> Iterator[Mapping[str, str]]:
        yield from static_targets(self._config.targets)
        yield from self._files.targets()
        if self._config.docker:
            try:
                yield from container_targets(self._engine.containers())
            except PluginUnavailableError:
                return
            except PluginError as error:
                log.warning("can't find containers with metrics: %s", error)

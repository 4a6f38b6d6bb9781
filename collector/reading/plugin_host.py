"""The plugin host: reads each plugin at its interval, and goes on when one fails or hangs.

A failing plugin is read less and less often; one that is not available on this host is tried again
every few minutes, without a warning. Plugins with a worker process, and those that wait for others,
have read threads of their own; the others share the first one. Readings of GPUs get the tag `job`
if the GPU is allocated to one, and lost GPUs keep their tags.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from collector.config import AgentConfig, plugin_settings
from collector.reading.plugin_reader import PluginPlan, PluginReader, phase_anchor
from collector.reading.read_threads import AfterReadings, OnPoints, ReadThread
from collector.reading.worker_process import WorkerProcess, open_plugin
from core.clock import Clock
from plugins.base import ADDRESS_PREFIX, GPUTags, PluginContext
from plugins.registry import load_plugin_class
from timeseries.points import Point

log = logging.getLogger(__name__)

SHARED_THREAD = ""
JOIN_SECONDS = 5.0
CLOSE_SECONDS = 4.0
# Readings with one of these tags need no tag `job`.
_OWNER_TAGS = frozenset({"job", "owner"})


class PluginHost:
    """Runs the plugins of one agent.

    Args:
        plans: what to read; see `plugin_plans`.
        context: what plugins share.
        on_points: called with each reading, from several threads.
        clock: the time.
        seed: determines the phase of this agent.
        after_readings: called in the shared thread after its readings; returns the seconds until it
            is due again.
        monotonic: seconds, not affected by changes of the wall clock.
    """

    def __init__(
        self,
        plans: Iterable[PluginPlan],
        context: PluginContext,
        *,
        on_points: OnPoints,
        clock: Clock,
        seed: str = "",
        after_readings: AfterReadings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._on_points = on_points
        self._clock = clock
        self._monotonic = monotonic
        self._anchor_seconds = phase_anchor(seed, now=clock(), at_seconds=monotonic())
        self._workers: dict[str, WorkerProcess] = {}
        self._threads = {SHARED_THREAD: self._new_thread(SHARED_THREAD, after_readings)}
        self._is_running = False
        self._past_failures = 0
        self.apply(plans)

    @property
    def names(self) -> list[str]:
        """The plugins that this host reads."""
        return [reader.name for reader in self._readers()]

    @property
    def gather_failures(self) -> int:
        """Readings that failed or exceeded their limit since the start."""
        return self._past_failures + sum(
            reader.errors + reader.timeouts for reader in self._readers()
        )

    @property
    def is_alive(self) -> bool:
        """Return whether a read thread is running; abandoned ones do not count."""
        return not all(thread.join(0.0) for thread in list(self._threads.values()))

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes."""
        return [pid for worker in list(self._workers.values()) if (pid := worker.pid) is not None]

    def is_starting(self, name: str) -> bool:
        """Return whether this plugin is enabled and its first reading has not finished."""
        return any(reader.name == name and reader.is_starting for reader in self._readers())

    def own_points(self, now: datetime) -> list[Point]:
        """Return the metrics about plugins that are due."""
        at_seconds = self._monotonic()
        points = (reader.own_point(now, at_seconds=at_seconds) for reader in self._readers())
        return [point for point in points if point is not None]

    def start(self) -> None:
        """Start reading."""
        self._is_running = True
        for thread in list(self._threads.values()):
            thread.start()

    def read_due(self) -> float:
        """Read the plugins that are due in the calling thread, for a host that is not started.

        Returns:
            The seconds until the next plugin is due.
        """
        return min(thread.read_due() for thread in list(self._threads.values()))

    def watch(self) -> float:
        """Abandon readings that hang; return the seconds until the next call."""
        return min(thread.watch() for thread in list(self._threads.values()))

    def apply(self, plans: Iterable[PluginPlan]) -> None:
        """Change what is read. Plugins whose settings stay the same are not restarted.

        For one thread.
        """
        plans = list(plans)  # raises errors before anything is changed
        assigned: dict[str, list[PluginReader]] = {name: [] for name in self._threads}
        existing = {reader.name: reader for reader in self._readers()}
        for plan in plans:
            reader = existing.get(plan.name)
            if reader is not None and plan.is_same_plugin(reader.plan):
                del existing[plan.name]
                reader.reschedule(plan, at_seconds=self._monotonic())
            else:
                build = partial(open_plugin, plan, self._context, self._workers)
                reader = PluginReader(plan, build, anchor_seconds=self._anchor_seconds)
            assigned.setdefault(plan.thread, []).append(reader)
        self._past_failures += sum(
            stopped.errors + stopped.timeouts for stopped in existing.values()
        )
        for name, readers in assigned.items():
            is_new = name not in self._threads
            if is_new:
                self._threads[name] = self._new_thread(name)
            self._threads[name].assign(readers)
            if is_new and self._is_running:
                self._threads[name].start()
        for name, readers in assigned.items():
            if name and not readers:
                self._remove_thread(name)

    def stop(self) -> None:
        """Stop reading, close the plugins and end the worker processes."""
        for thread in self._threads.values():
            thread.stop()
        for name, worker in self._workers.items():
            self._end_worker(worker, self._threads.get(name))
        for thread in self._threads.values():
            if not thread.join(JOIN_SECONDS):
                log.warning("a plugin is still being read; stopping without it")
            thread.close()

    def _remove_thread(self, name: str) -> None:
        thread = self._threads.pop(name)
        thread.stop()
        if (worker := self._workers.pop(name, None)) is not None:
            self._end_worker(worker, thread)
        else:
            thread.join(CLOSE_SECONDS)
        thread.close()

    def _end_worker(self, worker: WorkerProcess, thread: ReadThread | None) -> None:
        """Let the worker's plugins close; kill it if its thread hangs."""
        if thread is not None and not thread.join(CLOSE_SECONDS):
            worker.kill()
            thread.join(JOIN_SECONDS)
        worker.close()

    def _readers(self) -> list[PluginReader]:
        return [reader for thread in list(self._threads.values()) for reader in thread.readers]

    def _new_thread(self, name: str, after_readings: AfterReadings | None = None) -> ReadThread:
        return ReadThread(
            name or "host",
            on_points=self._tag_and_deliver,
            clock=self._clock,
            monotonic=self._monotonic,
            after_readings=after_readings,
        )

    def _tag_and_deliver(self, points: list[Point]) -> None:
        if any(point.tags.keys() & {"gpu", "uuid"} for point in points):
            points = restore_gpu_tags(points, self._context.known_gpus)
            points = add_job_tags(points, self._context.job_of_gpu())
        self._on_points(points)


def plugin_plans(config: AgentConfig, *, is_simulated: bool) -> Iterator[PluginPlan]:
    """Yield the enabled plugins, and how to read them.

    Raises:
        ConfigurationError: a plugin's table has errors.
    """
    for settings in plugin_settings(config):
        plugin_class = load_plugin_class(settings.name)
        traits = plugin_class.traits
        default = traits.is_simulated == is_simulated
        if default if settings.enabled is None else settings.enabled:
            yield PluginPlan(
                name=settings.name,
                plugin_class=plugin_class,
                config=settings.config,
                interval_seconds=settings.interval_seconds
                or traits.interval_seconds
                or config.interval_seconds,
                jitter_seconds=settings.jitter_seconds,
                time_limit_seconds=settings.time_limit_seconds or traits.time_limit_seconds,
                worker=traits.worker,
                own_thread=traits.own_thread,
            )


def restore_gpu_tags(points: Sequence[Point], known_tags: Callable[[], GPUTags]) -> list[Point]:
    """Return the points, with the former UUID of GPUs that no longer report one.

    Args:
        points: a reading.
        known_tags: see `PluginContext.known_gpus`; called only if there is such a GPU.
    """
    if not any(_has_no_uuid(point) for point in points):
        return list(points)
    tags_at = known_tags()
    return [
        replace(point, tags={**point.tags, **tags_at[point.tags["gpu"]]})
        if _has_no_uuid(point) and point.tags["gpu"] in tags_at
        else point
        for point in points
    ]


def add_job_tags(points: Sequence[Point], job_of_gpu: Mapping[str, str]) -> list[Point]:
    """Return the points, with the tag `job` for GPUs that are allocated to one.

    The slices of a GPU that is allocated as a whole belong to the job, too.

    Args:
        points: a reading.
        job_of_gpu: UUID of a GPU or slice to the job's id.
    """
    if not job_of_gpu:
        return list(points)
    job_of_index = {
        point.tags["gpu"]: job_of_gpu[uuid]
        for point in points
        if point.measurement == "gpu" and (uuid := point.tags.get("uuid", "")) in job_of_gpu
    }
    tagged = []
    for point in points:
        tags, job = point.tags, None
        if tags.keys().isdisjoint(_OWNER_TAGS):
            job = job_of_gpu.get(tags.get("uuid", ""))
            if job is None and point.measurement == "gpu_slice":
                job = job_of_index.get(tags.get("gpu", ""))
        tagged.append(point if job is None else replace(point, tags={**tags, "job": job}))
    return tagged


def _has_no_uuid(point: Point) -> bool:
    uuid = point.tags.get("uuid", "")
    return point.measurement == "gpu" and (not uuid or uuid.startswith(ADDRESS_PREFIX))

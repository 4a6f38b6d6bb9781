"""The plugin host: reads each plugin at its own interval, and keeps going when one fails or hangs.

A failing plugin is read ever less often; one that has nothing to read here is asked again every
few minutes, quietly. Plugins are read in lanes (see `collector.reading.lanes`): those of a child
process, and those that wait for others, in lanes of their own; the rest in the first. GPUs that an
attempt holds get the tag `job`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import cast

from collector.config import AgentConfig, plugin_settings
from collector.reading.attribution import named, with_jobs
from collector.reading.child_plugin import ChildPlugin
from collector.reading.child_process import ChildProcess
from collector.reading.lanes import Chore, Deliver, Lane
from collector.reading.readers import PluginPlan, PluginReader
from collector.reading.schedule import phase_anchor
from core.clock import Clock
from plugins.base import Plugin, PluginContext
from plugins.registry import load_plugin_class
from timeseries.points import Point

log = logging.getLogger(__name__)

HOST_LANE = ""
JOIN_SECONDS = 5.0
CLOSE_SECONDS = 4.0


class PluginHost:
    """Owns the plugins of one agent.

    Args:
        plans: what to read; see `plugin_plans`.
        context: what plugins share; `job_of_gpu` names the jobs of GPUs, `known_gpus` lost GPUs.
        deliver: takes what was read, from several threads.
        seed: what tells this agent from others, for its phase.
        chore: done in the first lane after each round; returns when it is wanted again, in seconds.
        monotonic: seconds that no change of the wall clock moves.
    """

    def __init__(
        self,
        plans: Iterable[PluginPlan],
        context: PluginContext,
        *,
        deliver: Deliver,
        clock: Clock,
        seed: str = "",
        chore: Chore | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._deliver = deliver
        self._clock = clock
        self._monotonic = monotonic
        self._anchor_seconds = phase_anchor(seed, now=clock(), at_seconds=monotonic())
        self._children: dict[str, ChildProcess] = {}
        self._lanes = {HOST_LANE: self._new_lane(HOST_LANE, chore)}
        self._is_running = False
        self._past_failures = 0
        self.apply(plans)

    @property
    def names(self) -> list[str]:
        """The plugins that this host reads."""
        return [reader.name for reader in self._readers()]

    @property
    def gather_failures(self) -> int:
        """How many readings failed or passed their limit since the agent began."""
        return self._past_failures + sum(one.errors + one.timeouts for one in self._readers())

    @property
    def is_alive(self) -> bool:
        """Whether a lane is still at work; threads inside plugins that hang do not count."""
        return not all(lane.join(0.0) for lane in list(self._lanes.values()))

    @property
    def child_pids(self) -> list[int]:
        """The processes that plugins are read in."""
        return [pid for child in list(self._children.values()) if (pid := child.pid) is not None]

    def is_waited_for(self, name: str) -> bool:
        """Whether this plugin is wanted and its first reading has not come to an end."""
        return any(reader.name == name and reader.is_new for reader in self._readers())

    def own_points(self, now: datetime) -> list[Point]:
        """Return the plugins' own figures, of those whose turn it is."""
        at_seconds = self._monotonic()
        points = (reader.own_point(now, at_seconds=at_seconds) for reader in self._readers())
        return [point for point in points if point is not None]

    def start(self) -> None:
        """Begin to read."""
        self._is_running = True
        for lane in list(self._lanes.values()):
            lane.start()

    def turn(self) -> float:
        """Read what is due on the calling thread, for a host that was not started.

        Returns:
            The seconds until the next plugin is due.
        """
        return min(lane.turn() for lane in list(self._lanes.values()))

    def watch(self) -> float:
        """Leave readings behind that hang; return the seconds until this is to be called again."""
        return min(lane.watch() for lane in list(self._lanes.values()))

    def apply(self, plans: Iterable[PluginPlan]) -> None:
        """Read these from now on. Plugins whose settings stay the same go on as they are.

        For one thread at a time.
        """
        plans = list(plans)  # a fault in them is raised here, before anything is changed
        wanted: dict[str, list[PluginReader]] = {name: [] for name in self._lanes}
        known = {reader.name: reader for reader in self._readers()}
        kept: set[str] = set()
        for plan in plans:
            reader = known.get(plan.name)
            if reader is not None and plan.is_same_plugin(reader.plan):
                kept.add(plan.name)
            wanted.setdefault(plan.lane, []).append(self._reader(plan, reader))
        self._past_failures += sum(
            reader.errors + reader.timeouts for name, reader in known.items() if name not in kept
        )
        for name, readers in wanted.items():
            if name not in self._lanes:
                self._lanes[name] = self._new_lane(name)
                self._lanes[name].assign(readers)
                if self._is_running:
                    self._lanes[name].start()
            else:
                self._lanes[name].assign(readers)
        self._end_lanes(name for name, readers in wanted.items() if name and not readers)

    def stop(self) -> None:
        """End the readings, close the plugins and end their processes."""
        for lane in self._lanes.values():
            lane.stop()
        self._end_children()
        for lane in self._lanes.values():
            if not lane.join(JOIN_SECONDS):
                log.warning("a plugin is still being read; the agent ends without it")
            lane.close()

    def _end_children(self) -> None:
        """Let the plugins of children close in peace; kill the child of a lane that hangs."""
        for name, child in self._children.items():
            lane = self._lanes.get(name)
            if lane is not None and not lane.join(CLOSE_SECONDS):
                child.kill()
                lane.join(JOIN_SECONDS)
            child.close()

    def _readers(self) -> list[PluginReader]:
        return [reader for lane in list(self._lanes.values()) for reader in lane.readers]

    def _reader(self, plan: PluginPlan, known: PluginReader | None) -> PluginReader:
        if known is not None and plan.is_same_plugin(known.plan):
            known.reschedule(plan, at_seconds=self._monotonic())
            return known
        return PluginReader(plan, lambda: self._open(plan), anchor_seconds=self._anchor_seconds)

    def _open(self, plan: PluginPlan) -> Plugin:
        if not plan.child:
            return plan.plugin_class(plan.config, self._context)
        child = self._children.setdefault(plan.child, ChildProcess(plan.child))
        return cast("Plugin", ChildPlugin(plan, self._context, child))

    def _new_lane(self, name: str, chore: Chore | None = None) -> Lane:
        return Lane(
            name or "host",
            deliver=self._take,
            clock=self._clock,
            monotonic=self._monotonic,
            chore=chore,
        )

    def _end_lanes(self, names: Iterable[str]) -> None:
        for name in list(names):
            lane = self._lanes.pop(name)
            lane.stop()
            child = self._children.pop(name, None)
            if not lane.join(CLOSE_SECONDS) and child is not None:
                child.kill()
                lane.join(JOIN_SECONDS)
            if child is not None:
                child.close()
            lane.close()

    def _take(self, points: list[Point]) -> None:
        if any(point.tags.keys() & {"gpu", "uuid"} for point in points):
            points = named(points, self._context.known_gpus)
            points = with_jobs(points, self._context.job_of_gpu())
        self._deliver(points)


def plugin_plans(config: AgentConfig, *, is_simulated: bool) -> Iterator[PluginPlan]:
    """Yield the plugins that the configuration wants, and how they are to be read.

    Raises:
        ConfigurationError: a plugin's table has faults.
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
                child=traits.child,
                own_thread=traits.own_thread,
            )

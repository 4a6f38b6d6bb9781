"""Docker containers: resource use of each, and the number in each state.

The engine lists the containers; cgroups have the resource use.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from core.clock import to_ns
from jobqueue.executors.base import JOB_LABEL
from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginError,
    PluginTraits,
    PluginUnavailableError,
    counters,
    gauges,
    matches_any,
    present,
    rates,
)
from plugins.containers.cgroups import Group, Use, find_group, network_bytes
from plugins.containers.engine import Engine, ListedContainer
from plugins.containers.numa import gpu_nodes, remote_percent
from plugins.procfs import CounterRates
from timeseries.points import FieldValue, Point

# Shorter than the default interval, so that a reading that is slightly early still lists.
LIST_EVERY = timedelta(seconds=8)
STATES = ("running", "paused", "exited", "created", "restarting", "dead")
WITH_FIGURES = frozenset({"running", "paused", "restarting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainersConfig:
    """Containers to skip in `container`; `containers` counts all.

    Attributes:
        skip_names: shell patterns of containers' names.
        skip_images: shell patterns of images.
    """

    skip_names: tuple[str, ...] = ()
    skip_images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Watched:
    """A container with its cgroups, if it has a process."""

    listed: ListedContainer
    restarts: int
    pid: int = 0
    group: Group | None = None

    @property
    def has_own_network(self) -> bool:
        """Return whether it has its own network namespace."""
        mode = self.listed.host_config.network_mode
        return mode != "host" and not mode.startswith("container:")


class ContainersPlugin(BasePlugin):
    """One point for each running container, and one with the counts of all."""

    name = "containers"
    config_class = ContainersConfig
    traits = PluginTraits(own_thread=True)
    metrics = (
        *gauges(
            cpu_percent=("percent", "CPU usage; 100 per core"),
            memory_bytes=("bytes", "memory in use, without reclaimable page cache"),
            memory_limit_bytes=("bytes", "memory limit; absent if unlimited"),
            page_cache_bytes=("bytes", "page cache of the files that it reads and writes"),
            cpu_pressure_percent=("percent", "time in which a process waited for a CPU"),
            memory_pressure_percent=("percent", "time in which a process waited for memory"),
            io_pressure_percent=("percent", "time in which a process waited for a disk"),
            cpu_throttled_percent=("percent", "periods in which the CPU limit stopped it"),
            remote_memory_percent=("percent", "memory on other NUMA nodes than its GPUs"),
            processes=(
                "processes",
                "processes and their threads, as docker stats counts PIDS",
            ),
        ),
        *rates(
            read_bytes_per_second=("bytes per second", "read from disks"),
            written_bytes_per_second=("bytes per second", "written to disks"),
            received_bytes_per_second=(
                "bytes per second",
                "received; absent on the host's network",
            ),
            sent_bytes_per_second=("bytes per second", "sent; absent on the host's network"),
        ),
        *counters(restarts=("restarts", "restarts by the restart policy")),
        *gauges(**{state: ("containers", f"containers that are {state}") for state in STATES}),
    )

    def __init__(self, config: ContainersConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context
        self._engine = Engine(context.docker_url)
        self._rates = CounterRates()
        self._period_rates = CounterRates()
        self._listed: list[ListedContainer] = []
        self._listed_at: datetime | None = None
        self._watched: dict[str, _Watched] = {}
        self._gpu_nodes: dict[str, int] = {}

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the readings; the container list is cached for a few seconds."""
        if self._listed_at is None or abs(now - self._listed_at) >= LIST_EVERY:
            self._list()
            self._listed_at = now
        job_of = self._context.job_of_container()
        nodes_of = self._nodes_of_jobs()
        points = [Point("containers", {}, self._counts(), to_ns(now))]
        for container_id, watched in self._watched.items():
            tags = {"container": watched.listed.name, "image": watched.listed.image}
            job = job_of.get(container_id) or (watched.listed.labels or {}).get(JOB_LABEL)
            if job:
                tags["job"] = job
            fields = self._fields(watched, now, near_nodes=nodes_of.get(job or "", ()))
            points.append(Point("container", tags, fields, to_ns(now)))
        return points

    def close(self) -> None:
        """Close the connection to the engine."""
        self._engine.close()

    def _list(self) -> None:
        try:
            self._listed = self._engine.containers()
        except PluginUnavailableError as error:
            if self._listed_at is None:
                raise
            # The engine was available: it is probably restarting, so retry soon.
            raise PluginError(str(error)) from error
        watched = (self._watch(listed) for listed in self._listed if self._is_wanted(listed))
        self._watched = {
            container.listed.id: container for container in watched if container is not None
        }
        self._rates.keep_only(set(self._watched))
        self._period_rates.keep_only(set(self._watched))
        self._gpu_nodes = gpu_nodes(proc=self._context.proc, sys=self._context.sys)

    def _is_wanted(self, listed: ListedContainer) -> bool:
        return (
            listed.state in WITH_FIGURES
            and not matches_any(listed.name, self._config.skip_names)
            and not matches_any(listed.image, self._config.skip_images)
        )

    def _watch(self, listed: ListedContainer) -> _Watched | None:
        """Return the container with its cgroups; inspect it if its process changed."""
        former = self._watched.get(listed.id)
        if former is not None and listed.state != "restarting":
            group = self._group(former.pid, listed)
            if group is not None:
                return _Watched(listed, former.restarts, former.pid, group)
        inspected = self._engine.inspect(listed.id)
        if inspected is None:
            return None
        pid = inspected.state.pid
        return _Watched(listed, inspected.restart_count, pid, self._group(pid, listed))

    def _group(self, pid: int, listed: ListedContainer) -> Group | None:
        if pid == 0:
            return None
        return find_group(pid, listed.id, proc=self._context.proc, sys=self._context.sys)

    def _counts(self) -> dict[str, FieldValue]:
        states = [listed.state for listed in self._listed]
        return {state: states.count(state) for state in STATES}

    def _nodes_of_jobs(self) -> dict[str, set[int]]:
        """Return the NUMA nodes of the GPUs of each job."""
        nodes: dict[str, set[int]] = {}
        for uuid, job in self._context.job_of_gpu().items():
            if uuid in self._gpu_nodes:
                nodes.setdefault(job, set()).add(self._gpu_nodes[uuid])
        return nodes

    def _fields(
        self, watched: _Watched, now: datetime, *, near_nodes: Iterable[int]
    ) -> dict[str, FieldValue]:
        fields: dict[str, FieldValue] = {"restarts": watched.restarts}
        if watched.group is None:
            return fields
        use = watched.group.read()
        traffic = (
            network_bytes(watched.pid, proc=self._context.proc) if watched.has_own_network else None
        )
        received, sent = traffic or (None, None)
        grown = {
            "cpu_percent": None if use.cpu_seconds is None else 100 * use.cpu_seconds,
            "read_bytes_per_second": use.read_bytes,
            "written_bytes_per_second": use.written_bytes,
            "received_bytes_per_second": received,
            "sent_bytes_per_second": sent,
            **{
                f"{resource}_pressure_percent": 100 * seconds
                for resource, seconds in use.waited_seconds.items()
            },
        }
        measured = {name: float(value) for name, value in grown.items() if value is not None}
        return {
            **present(
                {
                    "memory_bytes": use.memory_bytes,
                    "memory_limit_bytes": use.memory_limit_bytes,
                    "page_cache_bytes": use.page_cache_bytes,
                    "processes": use.processes,
                    "remote_memory_percent": remote_percent(use.node_bytes, near_nodes),
                    "cpu_throttled_percent": self._throttled_percent(watched, use, now=now),
                }
            ),
            **(self._rates.rates(watched.listed.id, measured, now=now) or {}),
            **fields,
        }

    def _throttled_percent(self, watched: _Watched, use: Use, *, now: datetime) -> float | None:
        if use.cpu_periods is None:
            return None
        periods, throttled = use.cpu_periods
        counts = {"periods": float(periods), "throttled": float(throttled)}
        grown = self._period_rates.rates(watched.listed.id, counts, now=now)
        if grown is None:
            return None
        return round(100 * grown["throttled"] / grown["periods"], 1) if grown["periods"] else 0.0

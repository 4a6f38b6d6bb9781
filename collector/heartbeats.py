"""Heartbeats: this appliance is online, with its inventory, executors, health and GPU processes.

The inventory is the last one from the plugin `inventory`. It is stored, so that a restarted agent
still reports GPUs whose driver does not respond.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from threading import Lock

import msgspec

from collector.buffering.buffer import DiskBuffer
from collector.config import AgentConfig
from collector.data_dir import load_json, save_json
from collector.errors import PortalRefusedError
from collector.gpu_slices.base import GPUSlices
from collector.gpu_slices.inventory import offered_modes, with_mig, with_profiles
from collector.health.monitor import GPU_PLUGINS, HealthMonitor, gpu_interval_seconds
from collector.inventory import host_inventory, simulated_inventory
from collector.jobs.attempts import AttemptRunner
from collector.jobs.build import keeps_results
from collector.reading.plugin_host import PluginHost
from collector.reading.plugin_reader import PluginPlan
from collector.samples import SampleWriter
from collector.sending.portal_connection import PortalConnection
from collector.updates import Updates
from core.clock import Clock, to_ns
from core.ids import new_id
from jobqueue.executors.base import Executor
from jobqueue.executors.cluster import ClusterExecutor
from plugins.simulation.appliance import SimulatedAppliance
from protocol.gangs import NetworkAbilities
from protocol.gpu_processes import MAX_GPU_PROCESSES, GPUProcess
from protocol.health import ApplianceHealth
from protocol.heartbeat import Heartbeat
from protocol.inventory import Inventory

log = logging.getLogger(__name__)

FILE_NAME = "inventory.json"
INVENTORY_PLUGIN = "inventory"
CHECK_INTERVAL_SECONDS = 1.0
# Too large, or invalid in another way.
REJECTED = frozenset({413, 422})
# Says that this agent uses lists of access points, but has none.
NO_LIST = "-"
FIRST_WAIT = timedelta(seconds=10)
PROCESS_PLUGINS = frozenset({"gpu_processes", "amdgpu_processes", "simulated_gpu"})
# After so many missed readings, the last one says nothing about now.
PROCESS_READINGS = 3
MIN_PROCESS_SECONDS = 60.0


class InventoryCache:
    """The last inventory, also on disk. Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._lock = Lock()
        self._current: Inventory | None = None

    @property
    def current(self) -> Inventory | None:
        """The inventory since the agent started; None before the first."""
        return self._current

    def update(self, inventory: Inventory) -> None:
        """Set the inventory; write it to disk if it has changed."""
        with self._lock:
            before = self._current or load_json(self._path, Inventory)
            if before is not None:
                inventory = with_profiles(inventory, before)
            if inventory != self._current:
                self._current = inventory
                save_json(self._path, inventory)

    def best(self) -> Inventory:
        """Return the current inventory, else the stored one, else that of the host alone."""
        return (
            self._current or load_json(self._path, Inventory) or host_inventory(with_nvidia=False)
        )


class GPUProcessCache:
    """The last reading of the processes on the GPUs, for as long as readings succeed.

    Args:
        plans: the plugins at the start, with the interval of the readings.
        monotonic: the time in seconds.
    """

    def __init__(
        self, plans: Sequence[PluginPlan], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        intervals = [plan.interval_seconds for plan in plans if plan.name in PROCESS_PLUGINS]
        self._lifetime_seconds = max(
            MIN_PROCESS_SECONDS, PROCESS_READINGS * max(intervals, default=0.0)
        )
        self._monotonic = monotonic
        self._read: dict[str, tuple[float, list[GPUProcess]]] = {}

    def update(self, processes: list[GPUProcess]) -> None:
        """Set the processes on all GPUs but AMD's."""
        self._read["nvidia"] = self._monotonic(), processes

    def update_amd(self, processes: list[GPUProcess]) -> None:
        """Set the processes on AMD's GPUs."""
        self._read["amd"] = self._monotonic(), processes

    def current(self) -> list[GPUProcess] | None:
        """Return the processes, of too many those with the most memory; None if unknown."""
        oldest = self._monotonic() - self._lifetime_seconds
        readings = [
            processes
            for read_at, processes in list(self._read.values())  # other threads set it
            if read_at >= oldest
        ]
        if not readings:
            return None
        processes = sorted(chain.from_iterable(readings), key=lambda own: -own.memory_bytes)
        return sorted(processes[:MAX_GPU_PROCESSES], key=lambda own: (own.gpu, own.uuid, own.pid))


class Heartbeats:
    """Sends a heartbeat when it is due, or when executors or access point have changed.

    Args:
        inventory: returns the inventory, without executors.
        is_starting: whether the inventory is still being read for the first time.
        executors: returns the names of the available executors.
        buffer: its counters are reported.
        clock: the time.
        health: returns the health, if it is evaluated.
        gpu_processes: returns the processes on the GPUs, if they are known.
        updates: passes on the orders of the portal to update the agent.
    """

    def __init__(
        self,
        *,
        inventory: Callable[[], Inventory],
        is_starting: Callable[[], bool],
        executors: Callable[[], list[str]],
        buffer: DiskBuffer,
        clock: Clock,
        health: Callable[[], ApplianceHealth | None] = lambda: None,
        gpu_processes: Callable[[], list[GPUProcess] | None] = lambda: None,
        updates: Updates | None = None,
    ) -> None:
        self._inventory = inventory
        self._is_starting = is_starting
        self._executors = executors
        self._buffer = buffer
        self._clock = clock
        self._health = health
        self._gpu_processes = gpu_processes
        self._updates = updates
        self._version = agent_version()
        self._instance_id = new_id()
        self._started_at: datetime | None = None
        self._sent_at: datetime | None = None
        self._sent_executors: list[str] = []
        self._sent_access_point = ""
        self._rejected: Inventory | None = None
        self._refusal = ""

    def step(self, portal: PortalConnection, *, interval_seconds: float) -> float:
        """Send a heartbeat if it is due; return the seconds until the next check.

        What the portal rejects is logged and left out until it changes.

        Raises:
            PortalUnreachableError: the next step sends it again.
        """
        now, executors = self._clock(), self._executors()
        access_point = portal.access_points.current
        has_changed = executors != self._sent_executors or access_point != self._sent_access_point
        if not self._is_due(now, interval_seconds, has_changed=has_changed):
            return CHECK_INTERVAL_SECONDS
        inventory = msgspec.structs.replace(self._inventory(), executors=executors)
        self._send(
            portal,
            Heartbeat(
                agent_version=self._version,
                sent_at_ns=to_ns(now),
                inventory=None if inventory == self._rejected else inventory,
                buffered_points=self._buffer.points,
                dropped_points=self._buffer.losses.dropped_points,
                health=self._health(),
                gpu_processes=self._gpu_processes(),
                instance_id=self._instance_id,
                can_update=self._updates is not None and self._updates.can_update,
                update=self._updates.report() if self._updates is not None else None,
                access_point=access_point,
                access_points_revision=portal.access_points.revision or NO_LIST,
            ),
        )
        self._sent_at, self._sent_executors = now, executors
        self._sent_access_point = access_point
        return CHECK_INTERVAL_SECONDS

    def _send(self, portal: PortalConnection, heartbeat: Heartbeat) -> None:
        """Send a heartbeat, without what the portal rejects: the appliance must stay online."""
        try:
            reply = portal.heartbeat(heartbeat)
        except PortalRefusedError as error:
            if error.http_status not in REJECTED:
                raise
            if heartbeat.inventory is not None:
                reduced = msgspec.structs.replace(heartbeat, inventory=None)
            elif heartbeat.health is not None:
                reduced = msgspec.structs.replace(heartbeat, health=None)
            else:
                raise
            if error.message != self._refusal:
                log.error("%s The heartbeat is sent without it.", error.message)  # noqa: TRY400
                self._refusal = error.message
            self._send(portal, reduced)
            self._rejected = heartbeat.inventory or self._rejected
        else:
            if self._updates is not None:
                self._updates.pass_on(reply.update)

    def _is_due(self, now: datetime, interval_seconds: float, *, has_changed: bool) -> bool:
        if self._sent_at is None:
            self._started_at = self._started_at or now
            return not self._is_starting() or now - self._started_at >= FIRST_WAIT
        interval = timedelta(seconds=interval_seconds)
        was_set_back = now < self._sent_at
        return now - self._sent_at >= interval or was_set_back or has_changed


class HeartbeatBuilder:
    """Collects what heartbeats contain.

    Args:
        config: of the agent.
        plans: the plugins at the start.
        simulation: the simulated appliance, if there is one.
        executor: runs jobs, with `runner`; None without jobs.
        network: returns what it offers to gangs.
        slices: cuts GPUs; None if the executor can't use parts of them.
        can_stage: whether datasets are fetched.
        updates: passes on the orders of the portal to update the agent.

    Attributes:
        health: evaluates the readings.
        gpu_processes: those of the last reading.
    """

    def __init__(
        self,
        config: AgentConfig,
        plans: Sequence[PluginPlan],
        *,
        simulation: SimulatedAppliance | None,
        executor: Executor | None,
        slices: GPUSlices | None,
        network: Callable[[], NetworkAbilities],
        runner: AttemptRunner | None,
        can_stage: bool,
        updates: Updates,
    ) -> None:
        self._config = config
        self._simulation = simulation
        self._slices = slices
        self._network = network
        self._executor = executor
        self._runner = runner
        self._can_stage = can_stage
        self._updates = updates
        self._inventory = InventoryCache(config.data_dir)
        self.gpu_processes = GPUProcessCache(plans)
        self.health = HealthMonitor(
            config.data_dir,
            gpu_interval_seconds=gpu_interval_seconds(plans),
            job_of_gpu=runner.job_of_gpu if runner is not None else dict,
        )
        if simulation is not None:
            self.health.set_inventory(simulated_inventory(simulation.config))

    def set_inventory(self, inventory: Inventory) -> None:
        """Set the inventory that the plugin found."""
        self._inventory.update(inventory)
        self.health.set_inventory(inventory)

    def heartbeats(
        self, host: PluginHost, buffer: DiskBuffer, *, clock: Clock, samples: SampleWriter
    ) -> Heartbeats:
        """Return the sender of heartbeats."""
        # The first heartbeat must report a lost GPU, or a job could be placed on it.
        first = (INVENTORY_PLUGIN, *GPU_PLUGINS)
        return Heartbeats(
            inventory=self._current_inventory,
            is_starting=lambda: any(host.is_starting(name) for name in first),
            executors=self._available_executors,
            buffer=buffer,
            clock=clock,
            health=lambda: msgspec.structs.replace(
                self.health.report(clock()), implausible_readings=samples.implausible.readings()
            ),
            gpu_processes=self.gpu_processes.current,
            updates=self._updates,
        )

    def _available_executors(self) -> list[str]:
        if self._executor is None or self._runner is None or not self._runner.is_available:
            return []
        return list(self._executor.names)

    def _current_inventory(self) -> Inventory:
        inventory = self._inventory.best()
        if self._simulation is not None:
            inventory = simulated_inventory(self._simulation.config)
            gpus = with_mig(inventory.gpus, self._simulation.mig.read())
            inventory = msgspec.structs.replace(inventory, gpus=gpus)
        executor = self._executor
        cluster = executor.cluster() if isinstance(executor, ClusterExecutor) else None
        return msgspec.structs.replace(
            inventory,
            can_probe=executor is not None and executor.probe() is not None,
            can_challenge=executor is not None and executor.challenges() is not None,
            can_stage=self._can_stage,
            partition_modes=offered_modes(self._slices, inventory.gpus),
            network=self._network(),
            can_keep_results=keeps_results(self._config, self._executor),
            cluster=cluster,
        )


def agent_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("vedette")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"

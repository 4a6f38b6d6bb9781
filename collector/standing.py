"""How the appliance stands, as heartbeats tell it: what it has, what can run jobs, its health."""

from collections.abc import Sequence

from collector.buffering.buffer import DiskBuffer
from collector.config import AgentConfig
from collector.health.monitor import GPU_PLUGINS, HealthMonitor, gpu_interval_seconds
from collector.heartbeats import Heartbeats, InventoryMemory
from collector.inventory import simulated_inventory
from collector.jobs.attempts import AttemptRunner
from collector.reading.plugin_host import PluginHost
from collector.reading.readers import PluginPlan
from core.clock import Clock
from jobqueue.executors.base import Executor
from jobqueue.executors.wire import Inventory
from plugins.simulation.appliance import SimulatedAppliance

INVENTORY_PLUGIN = "inventory"


class Standing:
    """Keeps inventory and health of one appliance.

    Args:
        config: names the data folder.
        plans: the plugins that are read at the start.
        simulation: the appliance that is pretended, where there is one.
        executor: what runs jobs, with `runner`; None where nothing does.

    Attributes:
        health: judges the readings.
    """

    def __init__(
        self,
        config: AgentConfig,
        plans: Sequence[PluginPlan],
        *,
        simulation: SimulatedAppliance | None,
        executor: Executor | None,
        runner: AttemptRunner | None,
    ) -> None:
        self._simulation = simulation
        self._executor = executor
        self._runner = runner
        self._inventory = InventoryMemory(config.data_dir)
        self.health = HealthMonitor(
            config.data_dir,
            gpu_interval_seconds=gpu_interval_seconds(plans),
            job_of_gpu=runner.gpu_holders if runner is not None else dict,
        )
        if simulation is not None:
            self.health.set_inventory(simulated_inventory(simulation.config))

    def take_inventory(self, inventory: Inventory) -> None:
        """Take what the plugin of that name found."""
        self._inventory.publish(inventory)
        self.health.set_inventory(inventory)

    def heartbeats(self, host: PluginHost, buffer: DiskBuffer, *, clock: Clock) -> Heartbeats:
        """Return what sends all this to the portal."""
        # The first heartbeat should tell of a lost GPU: a job could be placed on it otherwise.
        first = (INVENTORY_PLUGIN, *GPU_PLUGINS)
        return Heartbeats(
            inventory=self._current_inventory,
            is_waited_for=lambda: any(host.is_waited_for(name) for name in first),
            executors=self._executor_names,
            buffer=buffer,
            clock=clock,
            health=lambda: self.health.report(clock()),
        )

    def _executor_names(self) -> list[str]:
        if self._executor is None or self._runner is None or self._runner.is_engine_away:
            return []
        return [self._executor.name]

    def _current_inventory(self) -> Inventory:
        if self._simulation is not None:
            return simulated_inventory(self._simulation.config)
        return self._inventory.best()

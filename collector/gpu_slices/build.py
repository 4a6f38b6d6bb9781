"""The parts that share the GPUs of this appliance."""

import logging

from collector.config import AgentConfig
from collector.gpu_slices.base import GPUSlices
from collector.gpu_slices.mig import MIGSlices
from collector.gpu_slices.mig_worker import WorkerMIGDriver
from collector.gpu_slices.modes import AllModes
from collector.gpu_slices.mps import MPSSlices
from collector.gpu_slices.mps_control import ControlDaemons, MPSControl
from collector.gpu_slices.simulated_mps import SimulatedMPSControl
from core.clock import Clock
from jobqueue.executors.base import Executor
from plugins.nvml.reader import driver_is_present
from plugins.simulation.appliance import SimulatedAppliance

log = logging.getLogger(__name__)

EXECUTORS = frozenset({"docker", "simulated"})
"""Those that start containers themselves: they can give a container a part of a GPU."""


def build_slices(
    config: AgentConfig,
    executor: Executor | None,
    *,
    simulation: SimulatedAppliance | None,
    clock: Clock,
) -> GPUSlices | None:
    """Return what shares GPUs; None with an executor that can't use parts of GPUs."""
    if executor is None or executor.name not in EXECUTORS:
        return None
    driver = simulation.mig if simulation is not None else WorkerMIGDriver()
    control = _mps_control(config, is_simulated=simulation is not None)
    mps = MPSSlices(control, config.data_dir / "mps.json", clock=clock)
    return AllModes(mig=MIGSlices(driver), mps=mps)


def _mps_control(config: AgentConfig, *, is_simulated: bool) -> MPSControl:
    if is_simulated:
        return SimulatedMPSControl(config.data_dir / "simulated-mps")
    control = ControlDaemons(config.mps_dir)
    if control.problem and driver_is_present():
        log.info("GPUs can't be shared by MPS: %s", control.problem)
    return control

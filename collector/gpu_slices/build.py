"""The parts that share the GPUs of this appliance."""

import logging

from collector.capabilities import has_capability
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

CAP_SYS_ADMIN = 21
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
    mig = MIGSlices(simulation.mig) if simulation is not None else _mig_slices()
    control = _mps_control(config, simulation)
    mps = MPSSlices(control, config.data_dir / "mps.json", clock=clock)
    return AllModes(mig=mig, mps=mps)


def _mig_slices() -> MIGSlices:
    """Return the slices by MIG, which need a capability; see docs/gpu-slices.md."""
    is_permitted = has_capability(CAP_SYS_ADMIN)
    if not is_permitted and driver_is_present():
        log.info("GPUs can't be cut by MIG: this agent has no capability CAP_SYS_ADMIN")
    return MIGSlices(WorkerMIGDriver(), is_permitted=is_permitted)


def _mps_control(config: AgentConfig, simulation: SimulatedAppliance | None) -> MPSControl:
    if simulation is not None:
        return SimulatedMPSControl(config.data_dir / "simulated-mps", simulation)
    control = ControlDaemons(config.mps_dir)
    if control.problem and driver_is_present():
        log.info("GPUs can't be shared by MPS: %s", control.problem)
    return control

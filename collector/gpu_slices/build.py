"""The parts that share the GPUs of this appliance."""

from collector.gpu_slices.base import GPUSlices
from collector.gpu_slices.mig import MIGSlices
from collector.gpu_slices.mig_worker import WorkerMIGDriver
from collector.gpu_slices.modes import AllModes
from jobqueue.executors.base import Executor
from plugins.simulation.appliance import SimulatedAppliance

EXECUTORS = frozenset({"docker", "simulated"})
"""Those that start containers themselves: they can give a container a part of a GPU."""


def build_slices(
    executor: Executor | None, *, simulation: SimulatedAppliance | None
) -> GPUSlices | None:
    """Return what shares GPUs; None with an executor that can't use parts of GPUs."""
    if executor is None or executor.name not in EXECUTORS:
        return None
    driver = simulation.mig if simulation is not None else WorkerMIGDriver()
    return AllModes(mig=MIGSlices(driver))

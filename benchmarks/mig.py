"""Cutting GPUs by MIG, in random steps with crashes, against simulated GPUs.

After each step it is checked that no slot is used twice, that no instance belongs to nobody, and
that the instance of a running job is still there. Disk and real drivers take no part.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.document import Outcome, Promise
from benchmarks.shared.mig_steps import CrashError, MIGSteps
from plugins.simulation.config import SimulationConfig
from plugins.simulation.mig import SimulatedMIGDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many GPUs and steps."""

    gpus: int = 4
    steps: int = 10_000
    seed: int = 1


FULL = Plan()
QUICK = Plan(steps=300)


class SimulatedHardware:
    """Simulated GPUs whose driver ends the agent when it is told to."""

    def __init__(self, gpus: int) -> None:
        config = SimulationConfig(seed="benchmark", gpu_count=gpus)
        self._changes_left = 0
        self.driver = SimulatedMIGDriver(config, on_step=self._change)

    def crash_at(self, change: int) -> None:
        """End the agent before the change with this number."""
        self._changes_left = change

    def run_process(self, gpu_uuid: str, start: int, *, runs: bool) -> None:
        """Start or end a process in an instance."""
        (self.driver.processes.add if runs else self.driver.processes.discard)((gpu_uuid, start))

    def reboot(self) -> None:
        """Reboot the simulated host."""
        self.driver.reboot()

    def _change(self, what: str) -> None:
        self._changes_left -= 1
        if self._changes_left == 0:
            raise CrashError(f"before: {what}")


def measure(plan: Plan, folder: Path) -> Outcome:
    """Take the steps."""
    del folder
    # The agent warns of each outsider.
    logging.getLogger("collector.gpu_slices").setLevel(logging.ERROR)
    steps = MIGSteps(SimulatedHardware(plan.gpus), plan.seed)
    started = time.perf_counter()
    for _ in range(plan.steps):
        steps.take()
    steps.finish()
    seconds = time.perf_counter() - started
    return Outcome(
        {
            "steps_per_second": plan.steps / seconds,
            "violations": len(steps.violations),
            "counts": dict(steps.counts),
        },
        [Promise("broken rules of MIG instances", float(len(steps.violations)), 0.0, "")],
    )

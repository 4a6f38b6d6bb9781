"""MPS on a simulated appliance: a file in place of each daemon, and no processes."""

from pathlib import Path

from collector.gpu_slices.base import SliceError
from collector.gpu_slices.compute_mode import DEFAULT
from plugins.simulation.appliance import SimulatedAppliance


class SimulatedMPSControl:
    """Daemons that are files, which stay between starts of the agent; see `MPSControl`."""

    problem = ""

    def __init__(self, folder: Path, simulation: SimulatedAppliance) -> None:
        self._folder = folder
        self._simulation = simulation
        self._modes: dict[str, int] = {}

    def running(self) -> set[str]:
        """Return the GPUs that have a file."""
        return {path.name for path in self._folder.glob("*")}

    def start(self, gpu_uuid: str) -> None:
        """Create the file."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.pipe_dir(gpu_uuid).touch()
        except OSError as error:
            raise SliceError(f"{self._folder} can't be written: {error.strerror}.") from error

    def end(self, gpu_uuid: str) -> None:
        """Delete the file."""
        self.pipe_dir(gpu_uuid).unlink(missing_ok=True)

    def pipe_dir(self, gpu_uuid: str) -> Path:
        """Return the file."""
        return self._folder / gpu_uuid

    def compute_mode(self, gpu_uuid: str, mode: int | None = None) -> int:
        """Set the compute mode, which a new start of the agent forgets."""
        before = self._modes.get(gpu_uuid, DEFAULT)
        if mode is not None:
            self._modes[gpu_uuid] = mode
        return before

    def new_log_lines(self, gpu_uuid: str) -> list[str]:
        """Return a line for each fault."""
        return ["Fatal exception of a client"] * self._simulation.pop_mps_faults(gpu_uuid)

    def clients(self, gpu_uuid: str) -> tuple[list[int], bool]:  # noqa: ARG002 - there are none
        """Return none."""
        return [], False

"""Random steps of jobs, crashes and outsiders on GPUs that an agent cuts by MIG.

Each step does one thing, and then what must always be true is checked. A *crash* ends the agent
between two changes of the hardware; the next agent knows the attempts, as the stored ones, and
nothing else. An *outsider* makes instances beside the agent, and may run a process in them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Protocol

from collector.gpu_slices.base import SliceError
from collector.gpu_slices.mig import MIGSlices
from plugins.mig import MIGGPU, MIGDriver, MIGError
from protocol.gpu_slices import (
    GPUPartition,
    GPUSlice,
    MIGInstance,
    MIGPlacement,
    MIGProfile,
    PartitionMode,
)

LAYOUTS: tuple[tuple[tuple[int, int], ...], ...] = ((), ((2, 0), (2, 2), (4, 4)), ((4, 0), (1, 4)))
"""Slots and first slot of each instance."""


class CrashError(Exception):
    """The agent has ended."""


class Hardware(Protocol):
    """GPUs that can be disturbed."""

    @property
    def driver(self) -> MIGDriver:
        """The driver that cuts them."""

    def crash_at(self, change: int) -> None:
        """End the agent before the change with this number from now on; 0 for never."""

    def run_process(self, gpu_uuid: str, start: int, *, runs: bool) -> None:
        """Start or end a process of an outsider in an instance."""

    def reboot(self) -> None:
        """End all processes and instances."""


class _Watched:
    """A driver that notes which instances the agent destroys."""

    def __init__(self, driver: MIGDriver, on_destroy: Callable[[str, int], object]) -> None:
        self._on_destroy = on_destroy
        self.read, self.create = driver.read, driver.create
        self.set_mode, self.close = driver.set_mode, driver.close
        self._destroy = driver.destroy

    def destroy(self, gpu_uuid: str, start: int) -> None:
        """Destroy an instance."""
        self._on_destroy(gpu_uuid, start)
        self._destroy(gpu_uuid, start)


class MIGSteps:
    """Takes random steps.

    Attributes:
        counts: how often each step was taken, and what came of slices.
        violations: what must never happen, in words.
    """

    def __init__(self, hardware: Hardware, seed: int) -> None:
        self._hardware = hardware
        self._driver = hardware.driver
        self._random = Random(seed)  # noqa: S311 - no secret
        self._uuids = [gpu.uuid for gpu in self._driver.read()]
        self._orders = {uuid: GPUPartition(gpu_uuid=uuid) for uuid in self._uuids}
        self._profiles: list[MIGProfile] = []
        self._watched = _Watched(self._driver, self._check_destroyed)
        self._slices = MIGSlices(self._watched)
        self._wanted: dict[str, GPUSlice] = {}
        self._running: dict[str, str] = {}
        self._busy: dict[str, str] = {}
        self._processes: set[tuple[str, int]] = set()
        self._attempts = 0
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._steps: list[tuple[Callable[[], object], int]] = [
            (self.start_job, 40),
            (self.end_job, 25),
            (self.start_whole_job, 3),
            (self.end_whole_job, 4),
            (self.order, 4),
            (self.make_beside, 5),
            (self.end_process, 4),
            (self.restart, 5),
            (self.reboot, 1),
        ]
        for uuid in self._uuids:
            self._orders[uuid] = GPUPartition(gpu_uuid=uuid, mode=PartitionMode.MIG)
        self._settle()

    def take(self) -> None:
        """Take a step, in a third of cases with a crash in it, and check."""
        steps, weights = zip(*self._steps, strict=True)
        [step] = self._random.choices(steps, weights)
        self.counts[step.__name__] += 1
        self._hardware.crash_at(self._random.choice((0, 0, 1, 1, 2, 3)))
        with self._crashing():
            step()
        self._hardware.crash_at(0)
        self._check_running()
        self._settle()
        self._check_instances()

    def finish(self) -> None:
        """End all, and check that nothing is left."""
        for ended in (self._wanted, self._running, self._busy):
            ended.clear()
        for gpu_uuid, start in list(self._processes):
            self._hardware.run_process(gpu_uuid, start, runs=False)
        self._processes.clear()
        self._orders = {uuid: GPUPartition(gpu_uuid=uuid) for uuid in self._uuids}
        self._settle()
        left = [gpu.uuid for gpu in self._driver.read() if gpu.instances or gpu.is_enabled]
        self.violations += [f"GPU {uuid} is still cut at the end" for uuid in left]

    def start_job(self) -> None:
        """Place a job on free slots, as the portal sees them, and make its slice."""
        places = list(self._free_places())
        if not places:
            return
        self._attempts += 1
        attempt_id = f"attempt-{self._attempts}"
        self._wanted[attempt_id] = self._random.choice(places)
        self._settle()
        self._prepare(attempt_id)

    def end_job(self) -> None:
        """End a job."""
        if self._wanted:
            attempt_id = self._random.choice(list(self._wanted))
            self._wanted.pop(attempt_id)
            self._running.pop(attempt_id, None)
            self._settle()

    def start_whole_job(self) -> None:
        """Give a GPU without slices to a job as a whole."""
        taken = {wanted.gpu_uuid for wanted in self._wanted.values()} | set(self._busy.values())
        free = [
            gpu.uuid for gpu in self._driver.read() if gpu.uuid not in taken and not gpu.is_enabled
        ]
        if free:
            self._attempts += 1
            self._busy[f"attempt-{self._attempts}"] = self._random.choice(free)

    def end_whole_job(self) -> None:
        """End a job with a whole GPU."""
        if self._busy:
            self._busy.pop(self._random.choice(list(self._busy)))

    def order(self) -> None:
        """Change the order for a GPU."""
        uuid = self._random.choice(self._uuids)
        mode = self._random.choice((PartitionMode.MIG, PartitionMode.MIG, PartitionMode.WHOLE))
        by_slots = {profile.slots: profile.name for profile in self._profiles}
        layout = [
            MIGPlacement(profile=by_slots[slots], start=start)
            for slots, start in self._random.choice(LAYOUTS)
            if mode is PartitionMode.MIG and slots in by_slots
        ]
        self._orders[uuid] = GPUPartition(gpu_uuid=uuid, mode=mode, layout=layout)

    def make_beside(self) -> None:
        """Make an instance as an outsider, with a process in half of the cases."""
        for place in self._random.sample(places := list(self._free_places()), min(1, len(places))):
            self._hardware.crash_at(0)
            self._driver.create(place.gpu_uuid, place.profile, place.start)
            if self._random.random() < 0.5:  # noqa: PLR2004 - half
                self._hardware.run_process(place.gpu_uuid, place.start, runs=True)
                self._processes.add((place.gpu_uuid, place.start))

    def end_process(self) -> None:
        """End a process of an outsider."""
        if self._processes:
            gpu_uuid, start = self._random.choice(sorted(self._processes))
            self._hardware.run_process(gpu_uuid, start, runs=False)
            self._processes.discard((gpu_uuid, start))

    def restart(self) -> None:
        """Restart the agent; jobs run on."""
        self._slices = MIGSlices(self._watched)

    def reboot(self) -> None:
        """Reboot the host; half of its jobs start again with what they had."""
        self._hardware.reboot()
        self._processes.clear()
        for attempt_id in list(self._wanted):
            if self._random.random() < 0.5:  # noqa: PLR2004 - half
                self._wanted.pop(attempt_id)
            self._running.pop(attempt_id, None)
        self._busy.clear()
        self.restart()
        self._settle()
        for attempt_id in list(self._wanted):
            self._prepare(attempt_id)

    def _prepare(self, attempt_id: str) -> None:
        try:
            access = self._slices.prepare(attempt_id, self._wanted[attempt_id])
        except SliceError:
            self.counts["slices refused"] += 1
            self._wanted.pop(attempt_id)
            return
        self.counts["slices made"] += 1
        if access.slice_uuid in self._running.values():
            self.violations.append(f"{access.slice_uuid} has two jobs")
        self._running[attempt_id] = access.slice_uuid

    @contextmanager
    def _crashing(self) -> Iterator[None]:
        """Go on as a new agent if this one ends; what had not started is made again."""
        try:
            yield
        except (CrashError, MIGError):
            self.counts["crashes"] += 1
            self._hardware.crash_at(0)
            self._slices = MIGSlices(self._watched)
            self._settle()
            for attempt_id in self._wanted.keys() - self._running.keys():
                self._prepare(attempt_id)

    def _settle(self) -> None:
        before = {gpu.uuid: gpu.is_enabled for gpu in self._driver.read()}
        busy = set(self._busy.values())
        self._slices.settle(list(self._orders.values()), dict(self._wanted), busy)
        gpus = self._driver.read()
        self._profiles = next((gpu.profiles for gpu in gpus if gpu.profiles), self._profiles)
        self.violations += [
            f"GPU {gpu.uuid} was switched under a job"
            for gpu in gpus
            if gpu.uuid in busy and gpu.is_enabled != before[gpu.uuid]
        ]

    def _check_destroyed(self, gpu_uuid: str, start: int) -> None:
        self.violations += [
            f"the slice of {attempt_id} was destroyed while it ran"
            for attempt_id in self._running
            if (wanted := self._wanted[attempt_id]).gpu_uuid == gpu_uuid and wanted.start == start
        ]

    def _check_running(self) -> None:
        instances = {
            (gpu.uuid, made.start): made for gpu in self._driver.read() for made in gpu.instances
        }
        for attempt_id, uuid in self._running.items():
            wanted = self._wanted[attempt_id]
            made = instances.get((wanted.gpu_uuid, wanted.start))
            if made is None or made.uuid != uuid or made.profile != wanted.profile:
                self.violations.append(f"the slice of {attempt_id} is gone while it runs")

    def _check_instances(self) -> None:
        self._check_running()
        for gpu in self._driver.read():
            slots = Counter(slot for made in gpu.instances for slot in _slots(made))
            twice = [slot for slot, count in slots.items() if count > 1]
            self.violations += [f"slot {slot} of GPU {gpu.uuid} is used twice" for slot in twice]
            self.violations += [
                f"the {made.profile} at slot {made.start} of GPU {gpu.uuid} belongs to nobody"
                for made in gpu.instances
                if not self._is_accounted(gpu, made)
            ]

    def _is_accounted(self, gpu: MIGGPU, made: MIGInstance) -> bool:
        owned = any(
            wanted.gpu_uuid == gpu.uuid and wanted.start == made.start
            for wanted in self._wanted.values()
        )
        place = MIGPlacement(profile=made.profile, start=made.start)
        is_in_layout = place in self._orders[gpu.uuid].layout
        return owned or is_in_layout or (gpu.uuid, made.start) in self._processes

    def _free_places(self) -> Iterator[GPUSlice]:
        """Return where instances may go: no job's slots, no outsider's, and no whole job's GPU."""
        for gpu in self._driver.read():
            if not gpu.is_enabled or gpu.uuid in self._busy.values():
                continue
            taken = {
                slot
                for wanted in self._wanted.values()
                if wanted.gpu_uuid == gpu.uuid
                for slot in _slots(wanted)
            }
            for made in gpu.instances:
                place = MIGPlacement(profile=made.profile, start=made.start)
                if place not in self._orders[gpu.uuid].layout:
                    taken |= set(_slots(made))
            for profile in gpu.profiles:
                for start in profile.starts:
                    if taken.isdisjoint(range(start, start + profile.slots)):
                        yield _slice(gpu.uuid, profile, start)


def _slots(of: GPUSlice | MIGInstance) -> range:
    return range(of.start, of.start + of.slots)


def _slice(gpu_uuid: str, profile: MIGProfile, start: int) -> GPUSlice:
    return GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid=gpu_uuid,
        share_milli=125 * profile.slots,
        memory_bytes=profile.memory_bytes,
        profile=profile.name,
        start=start,
        slots=profile.slots,
    )

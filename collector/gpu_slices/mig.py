"""MIG instances for attempts and layouts. Nothing is stored: what is there is the driver's.

An instance belongs to the attempt whose slice has its GPU, profile and first slot, or to the GPU's
layout. All others are destroyed, whoever made them and however far they got; the driver refuses
that while a process uses them, so that programs beside jobs go on.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from collector.gpu_slices.base import SliceAccess, SliceError
from collector.gpu_slices.inventory import NVIDIA_PREFIX
from plugins.mig import MIGGPU, MIGDriver, MIGError, MIGInUseError, MIGPermissionError
from protocol.attempts import AttemptObservation
from protocol.gpu_slices import (
    GPUPartition,
    GPUSlice,
    MIGInstance,
    MIGPlacement,
    PartitionMode,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Order:
    """What one GPU should be like; `mode` is None where the portal orders none."""

    gpu: MIGGPU
    mode: PartitionMode | None
    layout: Sequence[MIGPlacement]
    owned: Collection[GPUSlice]
    is_free: bool


class MIGSlices:
    """Cuts GPUs by MIG; see `GPUSlices`.

    Args:
        driver: cuts them.
        is_permitted: whether the driver should let this agent; what it does counts in the end.
    """

    def __init__(self, driver: MIGDriver, *, is_permitted: bool = True) -> None:
        self._driver = driver
        self._is_permitted = is_permitted
        self._in_use: Mapping[str, GPUSlice] = {}
        self._problems: dict[str, str] = {}

    @property
    def modes(self) -> Sequence[PartitionMode]:
        """MIG, unless the driver refuses."""
        return [PartitionMode.MIG] if self._is_permitted else []

    def prepare(self, attempt_id: str, wanted: GPUSlice) -> SliceAccess:
        """Make the instance, or complete or return the one that is there.

        Call `settle` with the attempt before: it frees the slots.
        """
        others = {key: taken for key, taken in self._in_use.items() if key != attempt_id}
        for other_id, taken in others.items():
            if _is_mig(taken) and taken.gpu_uuid == wanted.gpu_uuid and _overlap(taken, wanted):
                raise SliceError(f"The attempt {other_id} still uses these slots of the GPU.")
        try:
            gpu = next((gpu for gpu in self._driver.read() if gpu.uuid == wanted.gpu_uuid), None)
            if gpu is None:
                raise SliceError("The GPU is not there, or doesn't know MIG.")
            if not gpu.is_enabled:
                raise SliceError(_why_off(gpu))
            made = self._driver.create(wanted.gpu_uuid, wanted.profile, wanted.start)
        except MIGError as error:
            self._note_permission(error)
            raise SliceError(
                f"The MIG instance {wanted.profile} can't be made: {error}."
            ) from error
        self._in_use = {**others, attempt_id: wanted}
        return SliceAccess(gpu_uuids=[made.uuid], slice_uuid=made.uuid)

    def settle(
        self, partitions: Sequence[GPUPartition], in_use: Mapping[str, GPUSlice], busy: set[str]
    ) -> None:
        """Destroy instances of nobody, make those that are missing, and switch idle GPUs."""
        self._in_use = in_use
        ordered = {
            partition.gpu_uuid: partition
            for partition in partitions
            if partition.gpu_uuid.startswith(NVIDIA_PREFIX)
        }
        if not ordered and not any(map(_is_mig, in_use.values())):
            return
        gpus: list[MIGGPU] = []
        self._try("", lambda: gpus.extend(self._driver.read()))
        for gpu in gpus:
            partition = ordered.get(gpu.uuid)
            slices = [taken for taken in in_use.values() if taken.gpu_uuid == gpu.uuid]
            order = _Order(
                gpu=gpu,
                mode=partition.mode if partition is not None else None,
                layout=partition.layout if partition is not None else [],
                owned=[taken for taken in slices if _is_mig(taken)],
                # Attempts on MIG instances, which are gone after a reboot, use no GPU without MIG.
                is_free=gpu.uuid not in busy and all(map(_is_mig, slices)),
            )
            self._try(gpu.uuid, partial(self._settle_gpu, order))

    def review(
        self, observed: Iterable[AttemptObservation], attempt_of_container: Mapping[str, str]
    ) -> list[AttemptObservation]:
        """Return what was observed: a fault in an instance ends no others."""
        del attempt_of_container
        return list(observed)

    def close(self) -> None:
        """Close the driver; instances stay."""
        self._driver.close()

    def _settle_gpu(self, order: _Order) -> None:
        gpu, wants_mig = order.gpu, order.mode is PartitionMode.MIG
        if not gpu.is_enabled:
            if order.mode is None or not order.is_free or not (wants_mig or gpu.is_pending):
                return
            gpu = self._switch(gpu, enabled=wants_mig)
            if not gpu.is_enabled:
                return
        wanted = _wanted(order, gpu) if wants_mig else [_placement(taken) for taken in order.owned]
        left = list(gpu.instances)
        if order.mode is not None:
            left = [made for made in left if not self._is_destroyed(gpu, made, wanted)]
        self._make_missing(gpu, left, wanted)
        if order.mode is not None and not wants_mig and order.is_free and not (left or wanted):
            self._switch(gpu, enabled=False)

    def _switch(self, gpu: MIGGPU, *, enabled: bool) -> MIGGPU:
        """Switch MIG; return the GPU as it is then."""
        log.info("GPU %s: switching MIG %s", gpu.uuid, "on" if enabled else "off")
        self._driver.set_mode(gpu.uuid, enabled=enabled)
        self._is_permitted = True
        gpu = next((read for read in self._driver.read() if read.uuid == gpu.uuid), gpu)
        if gpu.is_enabled != enabled:
            raise MIGError(_why_off(gpu) if enabled else "MIG stays on until the GPU's next reset")
        return gpu

    def _is_destroyed(
        self, gpu: MIGGPU, made: MIGInstance, wanted: Collection[MIGPlacement]
    ) -> bool:
        """Destroy an instance that is not wanted, unless a process uses it."""
        if MIGPlacement(profile=made.profile, start=made.start) in wanted:
            return False

        def destroy() -> None:
            try:
                self._driver.destroy(gpu.uuid, made.start)
            except MIGInUseError:
                raise MIGError(f"a process outside of jobs uses its {_text(made)}") from None
            log.info("GPU %s: destroyed its %s", gpu.uuid, _text(made))

        return self._try(f"{gpu.uuid} {made.start}", destroy)

    def _make_missing(
        self, gpu: MIGGPU, left: Sequence[MIGInstance], wanted: Iterable[MIGPlacement]
    ) -> None:
        complete = {(made.profile, made.start) for made in left if made.uuid}

        def make(place: MIGPlacement) -> None:
            self._driver.create(gpu.uuid, place.profile, place.start)
            log.info("GPU %s: made a %s", gpu.uuid, _text(place))

        for place in wanted:
            if (place.profile, place.start) not in complete:
                self._try(f"{gpu.uuid} {place.start}", partial(make, place))

    def _try(self, key: str, change: Callable[[], object]) -> bool:
        """Return whether a change succeeds; log each problem once, until it is another one."""
        try:
            change()
        except MIGError as error:
            self._note_permission(error)
            if self._problems.get(key) != str(error):
                self._problems[key] = str(error)
                log.warning("MIG%s: %s", f" on {key}" if key else "", error)
            return False
        self._problems.pop(key, None)
        return True

    def _note_permission(self, error: MIGError) -> None:
        if isinstance(error, MIGPermissionError):
            self._is_permitted = False


def _wanted(order: _Order, gpu: MIGGPU) -> list[MIGPlacement]:
    """Return the instances of attempts, and those of the layout that are not in their way."""
    slots_of = {profile.name: profile.slots for profile in gpu.profiles}
    return [
        *map(_placement, order.owned),
        *(
            place
            for place in order.layout
            if place.profile in slots_of
            and not any(
                taken.start < place.start + slots_of[place.profile]
                and place.start < taken.start + taken.slots
                for taken in order.owned
            )
        ),
    ]


def _placement(taken: GPUSlice) -> MIGPlacement:
    return MIGPlacement(profile=taken.profile, start=taken.start)


def _text(of: MIGInstance | MIGPlacement) -> str:
    return f"MIG instance {of.profile} at slot {of.start}"


def _is_mig(taken: GPUSlice) -> bool:
    return taken.mode is PartitionMode.MIG


def _overlap(first: GPUSlice, second: GPUSlice) -> bool:
    return first.start < second.start + second.slots and second.start < first.start + first.slots


def _why_off(gpu: MIGGPU) -> str:
    if gpu.is_pending:
        return (
            "MIG is on only after the GPU's next reset: drain the appliance, then reboot it or "
            "reset the GPU with nvidia-smi"
        )
    return "MIG is off on this GPU: add a partition policy with MIG for it"

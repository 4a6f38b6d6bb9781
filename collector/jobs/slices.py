"""The slices of attempts, in a thread of their own: attempts don't wait for a driver that hangs."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Lock

import msgspec

from collector.gpu_slices.base import GPUSlices, SliceAccess, SliceError
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedState
from protocol.gpu_slices import GPUPartition, GPUSlice

log = logging.getLogger(__name__)

# The driver, or a program beside the agent, may change what is on the GPUs.
SETTLE_INTERVAL = timedelta(seconds=30)
REVIEW_WAIT_SECONDS = 1.0


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt has: stored, since a stopping attempt is listed by its id alone.

    The UUID of `gpu_slice` is that of the MIG instance, once it is made.
    """

    job_id: str
    gpu_uuids: list[str] = []
    gpu_slice: GPUSlice | None = None

    @property
    def attributed_uuids(self) -> list[str]:
        """GPUs and MIG instances of which all readings are this job's."""
        if self.gpu_slice is None:
            return self.gpu_uuids
        return [self.gpu_slice.uuid] if self.gpu_slice.uuid else []


def allocations_of(
    desired: DesiredState, before: Mapping[str, Allocation], *, listed: Collection[str]
) -> dict[str, Allocation]:
    """Return what attempts have: those that should run, and the listed ones as before."""
    return {
        **{attempt_id: own for attempt_id, own in before.items() if attempt_id in listed},
        **{
            spec.attempt_id: _allocation(spec, before.get(spec.attempt_id))
            for spec in desired.attempts
        },
    }


def _allocation(spec: AttemptSpec, before: Allocation | None) -> Allocation:
    """Return what an attempt has, with the UUID of the instance that was made for it before."""
    own = Allocation(job_id=spec.job_id, gpu_uuids=spec.gpu_uuids, gpu_slice=spec.gpu_slice)
    if before is None or before.gpu_slice is None or not before.gpu_slice.uuid:
        return own
    return with_uuid(own, before.gpu_slice.uuid)


def with_uuid(own: Allocation, slice_uuid: str) -> Allocation:
    """Return an allocation with the UUID of its MIG instance."""
    if own.gpu_slice is None:
        return own
    made = msgspec.structs.replace(own.gpu_slice, uuid=slice_uuid)
    return msgspec.structs.replace(own, gpu_slice=made)


def with_uuids(
    observed: Iterable[AttemptObservation], allocations: Mapping[str, Allocation]
) -> dict[str, AttemptObservation]:
    """Return observations by attempt, with the UUIDs of their MIG instances."""
    uuids = {
        attempt_id: own.gpu_slice.uuid
        for attempt_id, own in allocations.items()
        if own.gpu_slice is not None
    }
    return {
        seen.attempt_id: msgspec.structs.replace(
            seen, gpu_slice_uuid=uuids.get(seen.attempt_id, "")
        )
        for seen in observed
    }


class AttemptSlices:
    """Makes slices for attempts, and settles the GPUs. For one thread, except `close`.

    Args:
        slices: cuts GPUs; None with an executor that can't use slices.
        wake: called in another thread when a slice is there.
    """

    def __init__(self, slices: GPUSlices | None, *, wake: Callable[[], object]) -> None:
        self._slices = slices
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slices")
        self._lock = Lock()
        self._is_hanging = False
        self._prepared: dict[str, Future[SliceAccess]] = {}
        self._settling: Future[None] = Future()
        self._settling.set_result(None)
        self._settled: object = None
        self._settled_at: datetime | None = None

    def settle(
        self,
        partitions: Sequence[GPUPartition],
        allocations: Mapping[str, Allocation],
        seen: Mapping[str, AttemptObservation],
        now: datetime,
    ) -> None:
        """Settle the GPUs after each change, and every 30 seconds.

        Nothing happens while an attempt runs of which is not known what it uses.

        Args:
            partitions: the orders of the portal.
            allocations: what the attempts have.
            seen: the last observation of each attempt; none of those that have not started.
            now: the time.
        """
        ended = {attempt_id for attempt_id, last in seen.items() if last.state.is_final}
        if self._slices is None or seen.keys() - ended - allocations.keys():
            return
        live = [own for attempt_id, own in allocations.items() if attempt_id not in ended]
        in_use = {
            attempt_id: own.gpu_slice
            for attempt_id, own in allocations.items()
            if attempt_id not in ended and own.gpu_slice is not None
        }
        busy = {uuid for own in live if own.gpu_slice is None for uuid in own.gpu_uuids}
        wanted = (partitions, in_use, busy)
        if wanted != self._settled or (self._is_due(now) and self._settling.done()):
            self._settled, self._settled_at = wanted, now
            self._settling = self._thread.submit(
                self._settle, self._slices, partitions, in_use, busy
            )

    def prepared(self, attempt_id: str, wanted: GPUSlice) -> SliceAccess | None:
        """Return how an attempt uses its slice; None while it is being made.

        Raises:
            SliceError: it can't be made.
        """
        if self._slices is None:
            raise SliceError("The executor of this appliance can't share GPUs.")
        future = self._prepared.get(attempt_id)
        if future is None:
            future = self._thread.submit(self._prepare, self._slices, attempt_id, wanted)
            self._prepared[attempt_id] = future
        return future.result() if future.done() else None

    def forget_all_but(self, attempt_ids: Collection[str]) -> None:
        """Forget the slices of attempts that have started, or should not start any more."""
        for attempt_id in self._prepared.keys() - set(attempt_ids):
            self._prepared.pop(attempt_id).cancel()

    def review(
        self, observed: Iterable[AttemptObservation], attempt_of_container: Mapping[str, str]
    ) -> list[AttemptObservation]:
        """Return what was observed, where attempts say if a neighbor ended them."""
        observed = list(observed)
        if self._slices is None:
            return observed
        # One wait for a driver that hangs: attempts go on.
        wait_seconds = 0.0 if self._is_hanging else REVIEW_WAIT_SECONDS
        self._is_hanging = not self._lock.acquire(timeout=wait_seconds)
        if self._is_hanging:
            return observed
        try:
            return self._slices.review(observed, attempt_of_container)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the slices, also while a driver hangs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._slices is not None:
            self._slices.close()

    def _is_due(self, now: datetime) -> bool:
        if self._settled_at is None:
            return True
        return not timedelta(0) <= now - self._settled_at < SETTLE_INTERVAL

    def _prepare(self, slices: GPUSlices, attempt_id: str, wanted: GPUSlice) -> SliceAccess:
        try:
            with self._lock:
                return slices.prepare(attempt_id, wanted)
        except SliceError:
            raise
        except Exception as error:
            log.exception("the slice of attempt %s", attempt_id)
            raise SliceError(f"The agent failed to make the slice: {error!r}") from error
        finally:
            self._wake()

    def _settle(
        self,
        slices: GPUSlices,
        partitions: Sequence[GPUPartition],
        in_use: Mapping[str, GPUSlice],
        busy: set[str],
    ) -> None:
        try:
            with self._lock:
                slices.settle(partitions, in_use, busy)
        except Exception:
            log.exception("the GPUs can't be settled")


def with_slice(spec: AttemptSpec, access: SliceAccess) -> AttemptSpec:
    """Return an attempt as its executor gets it: with the device and what else its slice needs."""
    return msgspec.structs.replace(
        spec,
        gpu_uuids=access.gpu_uuids,
        env={**spec.env, **access.env},
        secrets={name: value for name, value in spec.secrets.items() if name not in access.env},
        mounts=[*spec.mounts, *access.mounts],
        uses_host_ipc=access.uses_host_ipc,
    )


def slice_failed(attempt_id: str, message: str) -> AttemptObservation:
    """Return how an attempt ends whose slice can't be made."""
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.FAILED,
        reason="gpu_slice_failed",
        message=message,
    )

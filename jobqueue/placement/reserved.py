"""Reserved times: appliances on which only the jobs of a project start, or none.

A job of another project doesn't start where its time limit would end after a reservation begins. A
job without a limit is assumed to run for ever, so it never starts on an appliance with a
reservation ahead. Where only some GPUs are reserved, others may use the rest.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

import numpy as np

from jobqueue.placement.filters import RESERVED_CODE, Filter
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.views import (
    UNLIMITED,
    JobShape,
    JobView,
    ReservationView,
    Snapshot,
    period_text,
)
from protocol.gpu_slices import WHOLE_GPU


class ReservedTimes:
    """The reservations of a snapshot by the place of the appliance in the ledger."""

    def __init__(self, ledger: Ledger, snapshot: Snapshot) -> None:
        self._ledger = ledger
        self._at: defaultdict[int, list[ReservationView]] = defaultdict(list)
        for reservation in snapshot.reservations:
            for ident in reservation.appliance_ids:
                if ident in ledger.index:
                    self._at[ledger.index[ident]].append(reservation)
        self._projects: dict[str, str | None] = {}
        if self._at:
            self._projects = {
                running.job_id: running.project_id
                for view in snapshot.appliances
                for running in view.running
            }

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, job: JobView) -> None:
        """Note the project of a job that has started."""
        self._projects[job.id] = job.project_id

    def ends(self, now: datetime) -> Iterator[tuple[datetime, int]]:
        """Yield when reservations end that go on or are next, with their places."""
        for place, reservations in self._at.items():
            for reservation in reservations:
                period = reservation.period(now)
                if period is not None:
                    yield period[1], place

    def filter_for(self, job: JobView, now: datetime) -> Filter:
        """Return the filter that rejects the appliances that are kept from a job."""
        reasons = {
            place: reason
            for place in self._at
            if (reason := self._reason(place, job, now)) is not None
        }

        def rejects(ledger: Ledger, _shape: JobShape) -> Mask:
            mask = np.zeros(ledger.size, np.bool_)
            mask[list(reasons)] = True
            return mask

        return Filter(RESERVED_CODE, rejects, lambda _ledger, _shape, place: reasons[place])

    def _reason(self, place: int, job: JobView, now: datetime) -> str | None:
        ends_at = now + (job.time_limit or UNLIMITED)
        for reservation in self._at[place]:
            period = reservation.period(now)
            is_own = job.project_id is not None and job.project_id in reservation.project_ids
            if period is None or is_own or ends_at <= period[0]:
                continue
            if reservation.gpus is not None and self._fits_beside(place, job, reservation, now):
                continue
            return f"{_kept(reservation)} from {period_text(*period)}; {_limit_text(job, ends_at)}"
        return None

    def _fits_beside(
        self, place: int, job: JobView, reservation: ReservationView, now: datetime
    ) -> bool:
        """Return whether the reserved GPUs are free at the begin in spite of a job of others."""
        period = reservation.period(now)
        if period is None or not job.gpus:
            return True
        usable = sum(not gpu.is_failed for gpu in self._ledger.views[place].gpus)
        if place in self._ledger.clusters:
            usable = len(self._ledger.views[place].gpu_models)
        taken: defaultdict[str | None, float] = defaultdict(float)
        for allocation in self._ledger.allocations[place]:
            project_id = self._projects.get(allocation.job_id)
            if allocation.ends_at > period[0] and project_id not in reservation.project_ids:
                taken[project_id] += len(allocation.gpus) * allocation.gpu_milli / WHOLE_GPU
        reserved: float = reservation.gpus or 0
        for other in self._at[place]:
            if other is reservation or job.project_id in other.project_ids:
                continue
            if _overlap(period, other.period(now)):
                used = sum(taken[project_id] for project_id in other.project_ids)
                reserved += max(0, (other.gpus or 0) - used)
        return usable - sum(taken.values()) - job.gpu_count >= reserved


def _overlap(period: tuple[datetime, datetime], other: tuple[datetime, datetime] | None) -> bool:
    return other is not None and other[0] < period[1] and period[0] < other[1]


def _kept(reservation: ReservationView) -> str:
    gpus = "" if reservation.gpus is None else f"{reservation.gpus} GPUs "
    if reservation.holder:
        return f"{gpus}reserved by {reservation.holder}"
    if not reservation.project:
        return f"{gpus}kept free for {reservation.name!r}"
    return f"{gpus}reserved for project {reservation.project}"


def _limit_text(job: JobView, ends_at: datetime) -> str:
    if job.time_limit is None:
        return "the job has no time limit"
    return f"the job's limit ends at {ends_at:%Y-%m-%d %H:%M} UTC"

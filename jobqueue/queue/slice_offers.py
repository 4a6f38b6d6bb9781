"""What a job could get of the GPUs now: slices or whole ones, and what separates it from others."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from core.quantities import format_size
from jobqueue.dispatch.appliance_views import models_of
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.jobs.settings import settings_of
from jobqueue.partitions.isolation import ISOLATION, Isolation, IsolationRules
from jobqueue.partitions.texts import slice_words
from jobqueue.placement.clusters import ClusterRoom
from jobqueue.placement.filters import passing
from jobqueue.placement.ledger import Ledger
from jobqueue.placement.plan import Planner
from jobqueue.placement.plan_state import sized
from jobqueue.placement.slices import GPUKind, Part, SliceNeed, SliceRequest, fitting_part, options
from jobqueue.placement.views import JobShape, Snapshot
from jobqueue.projects.service import project_for_job
from jobqueue.queue.pending import filters_for, view_of
from protocol.gpu_slices import MAX_SHARES, WHOLE_GPU, PartitionMode
from protocol.job_spec import JobRequest
from tenants.permissions import Permission
from tenants.scope import Scope


class SliceKind(NamedTuple):
    """What a job would get, and of which GPUs."""

    mode: PartitionMode
    gpu_model: str
    profile: str
    memory_bytes: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class SliceOffer:
    """How many slices of a kind, or whole GPUs, are free for a job, of those that there are."""

    kind: SliceKind
    free: int
    total: int

    @property
    def isolation(self) -> Isolation:
        """What separates the job from others on the GPU."""
        return ISOLATION[self.kind.mode]

    @property
    def title(self) -> str:
        """Such as `MIG 1g.10gb with 10 GiB on NVIDIA H100`."""
        kind = self.kind
        if kind.mode is PartitionMode.WHOLE:
            size = f" with {format_size(kind.memory_bytes)}" if kind.memory_bytes else ""
            return f"Whole GPU{size}: {kind.gpu_model}"
        words = slice_words(
            kind.mode,
            profile=kind.profile,
            memory_bytes=kind.memory_bytes,
            share_milli=kind.share_milli,
        )
        return f"{words} on {kind.gpu_model}"

    @property
    def text(self) -> str:
        """Such as `9 of 14 free now`."""
        return f"{self.free} of {self.total} free now"


def slices_that_fit(
    session: Session, scope: Scope, request: JobRequest, *, appliance: str = "", now: datetime
) -> list[SliceOffer]:
    """Return what a request could get of the tenant's GPUs, the most free first.

    Args:
        session: the session.
        scope: of the user.
        request: its resources, required labels and project count; the rest needn't be valid. Whole
            GPUs are among the result where it would get those.
        appliance: the only one, by id or name; "" for any.
        now: the time.

    Raises:
        InvalidInputError: the user can't submit jobs to its project.
    """
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id = scope.require_tenant()
    project = project_for_job(session, scope, request.project)
    views = tenant_views(session, tenant_id, only=[appliance] if appliance else None)
    isolation = settings_of(session, tenant_id).isolation
    job = view_of(scope, request, models_of(views), now=now, project=project)
    planner = Planner(Snapshot(now=now, appliances=views, jobs=(), isolation=isolation))
    wanted, ledger = sized(planner.ledger, job), planner.ledger
    if not wanted.gpus:
        return []
    places = np.flatnonzero(
        passing(filters_for(request), ledger, wanted.shape, np.ones(ledger.size, np.bool_))
    )
    count = _count_slices if wanted.shape.slice else _count_whole
    free, total = count(ledger, wanted.shape, places)
    offers = [SliceOffer(kind, free[kind], number) for kind, number in total.items()]
    return sorted(offers, key=lambda offer: (-offer.free, offer.kind))


def _count_whole(
    ledger: Ledger, shape: JobShape, places: np.ndarray
) -> tuple[Counter[SliceKind], Counter[SliceKind]]:
    free: Counter[SliceKind] = Counter()
    total: Counter[SliceKind] = Counter()
    room, able = ledger.with_room(shape), ledger.eligible(shape) & ledger.usable
    for place in places:
        for slot, gpu in enumerate(ledger.views[place].gpus):
            if able[slot, place]:
                kind = SliceKind(PartitionMode.WHOLE, gpu.model, "", gpu.memory_bytes, WHOLE_GPU)
                total[kind] += 1
                free[kind] += bool(room[slot, place])
        if place in ledger.clusters:
            _count_nodes(ledger.clusters[place], shape, free, total)
    return free, total


def _count_nodes(
    cluster: ClusterRoom, shape: JobShape, free: Counter[SliceKind], total: Counter[SliceKind]
) -> None:
    """Add the GPUs of the nodes that a cluster offers."""
    view = cluster.view
    for node in np.flatnonzero(cluster.large_enough(shape.of_node) & view.is_up).tolist():
        memory_bytes = int(view.gpu_memory_bytes[node])
        kind = SliceKind(PartitionMode.WHOLE, view.models[node], "", memory_bytes, WHOLE_GPU)
        total[kind] += int(view.gpus[node])
        free[kind] += int(cluster.free_gpus[node])


def _count_slices(
    ledger: Ledger, shape: JobShape, places: np.ndarray
) -> tuple[Counter[SliceKind], Counter[SliceKind]]:
    free: Counter[SliceKind] = Counter()
    total: Counter[SliceKind] = Counter()
    slices, request = ledger.slices, shape.slice
    if slices is None or request is None:
        return free, total
    able = ledger.eligible(shape) & ledger.usable
    for place in places:
        for slot, gpu in enumerate(ledger.views[place].gpus):
            kind = slices.kind_at(place, slot) if able[slot, place] else None
            if kind is None:
                continue
            own = _kind_of(kind, request.need, gpu.model)
            # Whose the parts are matters only as far as it is the job's user and project.
            parts = tuple(sorted(_seen_by(request, part) for part in slices.parts_at(place, slot)))
            total[own] += _room(kind, (), request, slices.rules)
            if ledger.gpu_free[slot, place] > 0:
                free[own] += _room(kind, parts, request, slices.rules)
    return free, total


def _kind_of(kind: GPUKind, need: SliceNeed, model: str) -> SliceKind:
    smallest = options(kind, need)[0]
    profile = smallest.profile
    memory_bytes = kind.memory_bytes * smallest.shares // max(1, kind.shares)
    return SliceKind(
        kind.mode,
        model,
        profile.name if profile else "",
        profile.memory_bytes if profile else memory_bytes,
        smallest.milli,
    )


def _seen_by(request: SliceRequest, part: Part) -> Part:
    is_own, is_same = part.user_id == request.user_id, part.project_id == request.project_id
    return part._replace(
        user_id=request.user_id if is_own else "other",
        project_id=request.project_id if is_same else "other",
    )


@lru_cache(10_000)
def _room(
    kind: GPUKind, parts: tuple[Part, ...], request: SliceRequest, rules: IsolationRules
) -> int:
    """Return how many such slices fit on a GPU beside others."""
    present: list[Part] = list(parts)
    for count in range(MAX_SHARES):
        part = fitting_part(kind, present, request, rules)
        if part is None:
            return count
        present.append(part)
    return MAX_SHARES

"""Filters of placement: each rejects appliances for one reason, and can say why.

The filters run in order, each on what the ones before left. An appliance that passes those of
`FEASIBLE` could run the job if it were idle; one that passes those of `FREE` can run it now. So a
later filter is the more relevant reason: its appliances are closer to running the job.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from core.quantities import format_size
from jobqueue.executors.abilities import Need, limit_of
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.placement.cluster_filters import (
    busy_fact,
    down_fact,
    full_nodes,
    image_fact,
    no_nodes_up,
    nodes_fact,
    queue_fact,
    refusing_queues,
    too_small_nodes,
    unavailable,
    wrong_images,
)
from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.ledger import Ints, Ledger, Mask
from jobqueue.placement.rental_filters import (
    GRANT_FILTERS,
    full_contracts,
    full_fact,
    not_rented,
    refusing,
    refusing_fact,
)
from jobqueue.placement.views import JobShape
from protocol.gpu_slices import WHOLE_GPU
from tenants.models import ApplianceState

MAX_EXAMPLES = 3
ABILITIES = frozenset(
    {Need.GANG_NETWORK, Need.HOST_NETWORK, Need.RDMA, Need.DATASETS, Need.OUTPUTS}
)


@dataclass(frozen=True, slots=True)
class Example:
    """An appliance that was refused, and the fact that speaks against it.

    Of a rented one it has no id, and the name of the offer.
    """

    appliance_id: str
    appliance: str
    fact: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """The number of appliances that were rejected for one reason, with a few examples."""

    code: str
    count: int
    examples: Sequence[Example]

    def __str__(self) -> str:
        first = self.examples[0]
        rest = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{first.appliance}: {first.fact}{rest}"


class Filter(NamedTuple):
    """A reason: its code, the appliances that it rejects, and the fact about one of them.

    `rank` gives the order of the examples, the lowest first; None is by name. Only connectors fail
    one that `is_of_clusters`, and only rented appliances one that `is_of_rentals`: it takes no time
    in a fleet without any. Nor does one that `is_needed` says rejects nothing for a shape.
    """

    code: str
    rejects: Callable[[Ledger, JobShape], Mask]
    fact: Callable[[Ledger, JobShape, int], str]
    rank: Callable[[Ledger, JobShape], np.ndarray] | None = None
    is_of_clusters: bool = False
    is_of_rentals: bool = False
    is_needed: Callable[[Ledger, JobShape], bool] | None = None

    def is_idle(self, ledger: Ledger, shape: JobShape) -> bool:
        """Return whether it rejects nothing, as there is none of what it is about."""
        return (
            (self.is_of_clusters and not ledger.clusters)
            or (self.is_of_rentals and not ledger.grants)
            or (self.is_needed is not None and not self.is_needed(ledger, shape))
        )


def apply_filters(
    filters: Sequence[Filter],
    ledger: Ledger,
    shape: JobShape,
    remaining: Mask,
    *,
    is_ranked: bool = True,
) -> tuple[Mask, list[Rejection]]:
    """Return the appliances that pass all filters, and the rejections of the others.

    Examples are by name, not by rank, unless `is_ranked`: that is faster.
    """
    rejections = []
    for appliance_filter in filters:
        if appliance_filter.is_idle(ledger, shape):
            continue
        if not remaining.any():
            break
        rejected = remaining & appliance_filter.rejects(ledger, shape)
        places = np.flatnonzero(rejected)
        if places.size:
            ranks = (
                appliance_filter.rank(ledger, shape)[places]
                if appliance_filter.rank and is_ranked
                else None
            )
            rejections.append(rejection(appliance_filter, ledger, shape, places, ranks))
            remaining = remaining & ~rejected
    return remaining, rejections


def passing(filters: Sequence[Filter], ledger: Ledger, shape: JobShape, remaining: Mask) -> Mask:
    """Return the appliances that pass all filters, without the reasons of the others."""
    for appliance_filter in filters:
        if appliance_filter.is_idle(ledger, shape):
            continue
        remaining = remaining & ~appliance_filter.rejects(ledger, shape)
    return remaining


def rejection(
    reason: Filter,
    ledger: Ledger,
    shape: JobShape,
    places: np.ndarray,
    ranks: np.ndarray | None = None,
) -> Rejection:
    """Return the rejection of some appliances for one reason."""
    shown = places if ranks is None else places[np.argsort(ranks, kind="stable")]
    examples = [
        Example(
            "" if ledger.is_rented[at] else ledger.views[at].id,
            ledger.views[at].name,
            reason.fact(ledger, shape, int(at)),
        )
        for at in shown[:MAX_EXAMPLES]
    ]
    return Rejection(reason.code, int(places.size), examples)


def most_relevant_first(rejections: Sequence[Rejection]) -> list[Rejection]:
    """Return the rejections, the closest to running the job first."""
    return sorted(rejections, key=lambda rejected: -_ORDER[rejected.code])


def count_free(ledger: Ledger, shape: JobShape) -> Ints:
    """Return for each appliance the number of GPUs with the capacity that the job needs."""
    counts: Ints = np.count_nonzero(ledger.with_room(shape), axis=0)
    return counts


def gpus_free_text(ledger: Ledger, shape: JobShape, place: int) -> str:
    """Return what is free on an appliance, such as `3 of 8 GPUs free`."""
    count = np.count_nonzero(ledger.with_room(shape)[:, place])
    free = "free" if shape.slice is None else "with room"
    facts = [f"{count} of {ledger.gpus_total[place]} GPUs {free}"]
    failed, outside = ledger.gpus_failed[place], ledger.gpus_outside[place]
    switching = sum(gpu.is_switching for gpu in ledger.views[place].gpus)
    notes = [
        (failed, "failed"),
        (outside, "used outside of jobs"),
        (switching, "to be partitioned anew once idle"),
    ]
    facts += [f"{number} {note}" for number, note in notes if number]
    return ", ".join(facts)


def requested_text(shape: JobShape) -> str:
    """Return the requested GPUs, such as `4 requested` or `1 with 40 GiB requested`."""
    if shape.slice is not None:
        return f"{shape.slice.need} requested"
    share = f"{shape.gpu_milli / WHOLE_GPU:g} of " if shape.gpu_milli < WHOLE_GPU else ""
    models = f" {' or '.join(sorted(shape.gpu_models))}" if shape.gpu_models else ""
    memory = f" with {format_size(shape.gpu_memory_bytes)}" if shape.gpu_memory_bytes else ""
    return f"{share}{shape.gpus}{models}{memory} requested"


def _of_hosts(reason: Filter) -> Filter:
    """Return a filter by the resources of the host, which a connector's don't matter to."""

    def rejects(ledger: Ledger, shape: JobShape) -> Mask:
        rejected = reason.rejects(ledger, shape)
        return rejected & ~ledger.is_cluster if ledger.clusters else rejected

    return reason._replace(rejects=rejects)


def _is_in(ledger: Ledger, *states: ApplianceState) -> Mask:
    is_in: Mask = np.isin(ledger.states, [state.value for state in states])
    return is_in


def _not_requested(ledger: Ledger, shape: JobShape) -> Mask:
    rejected = np.full(ledger.size, shape.requested is not None)
    place = ledger.index.get(shape.requested or "")
    if place is not None:
        rejected[place] = False
    return rejected


def _missing_labels(ledger: Ledger, shape: JobShape) -> Mask:
    if not shape.labels:
        return np.zeros(ledger.size, np.bool_)
    missing = (not shape.labels <= view.labels for view in ledger.views)
    return np.fromiter(missing, np.bool_, ledger.size)


def _labels_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    missing = sorted(shape.labels - ledger.views[place].labels)
    return f"lacks the label {', '.join(f'{key}={value}' for key, value in missing)}"


def _executor_limits(ledger: Ledger, shape: JobShape) -> Mask:
    if not shape.needs:
        return np.zeros(ledger.size, np.bool_)
    limited = (bool(_limit_fact(ledger, shape, place)) for place in range(ledger.size))
    return np.fromiter(limited, np.bool_, ledger.size)


def _limit_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    return limit_of(ledger.views[place].executors, shape.needs, has_gpus=bool(shape.gpus))


def _unable(ledger: Ledger, shape: JobShape) -> Mask:
    wanted = shape.needs & ABILITIES
    if not wanted:
        return np.zeros(ledger.size, np.bool_)
    unable = (not wanted.isdisjoint(view.missing) for view in ledger.views)
    return np.fromiter(unable, np.bool_, ledger.size)


def _unable_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    missing = ledger.views[place].missing
    return next(missing[need] for need in sorted(shape.needs & missing.keys()))


def _too_few_usable(ledger: Ledger, shape: JobShape) -> Mask:
    usable = np.count_nonzero(ledger.eligible(shape) & ledger.usable, axis=0)
    is_too_small: Mask = shape.gpus > usable
    return is_too_small


def _failed_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    view = ledger.views[place]
    failed = [gpu for gpu in view.gpus if gpu.is_failed]
    causes = ", ".join(sorted({gpu.failure for gpu in failed if gpu.failure}))
    why = f" ({causes})" if causes else ""
    has = f"has {_count(len(view.gpus), 'GPU')}, {len(failed)} failed{why}"
    return f"{has}, {requested_text(shape)}"


def _eligible_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    kind = "of that memory" if not shape.gpu_models else "of that kind"
    unknown = sum(not gpu.memory_bytes for gpu in ledger.views[place].gpus)
    note = f" and {unknown} of unknown memory" if unknown and shape.gpu_memory_bytes else ""
    count = _count(sum(ledger.eligible_at(place, shape)), "GPU")
    return f"has {count} {kind}{note}, {requested_text(shape)}"


def _used_outside(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances where only programs outside of jobs keep the job from its GPUs."""
    free = count_free(ledger, shape)
    blocked = np.count_nonzero(ledger.used_outside & ledger.eligible(shape), axis=0)
    is_blocked: Mask = (shape.gpus > free) & (shape.gpus <= free + blocked)
    return is_blocked


def _partitioned(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances where only the partition of the GPUs keeps the job from them."""
    if ledger.slices is None and shape.slice is None:
        return np.zeros(ledger.size, np.bool_)
    able = np.count_nonzero(ledger.eligible(shape), axis=0)
    large = np.count_nonzero(ledger.large_enough(shape), axis=0)
    is_partitioned: Mask = (shape.gpus > able) & (shape.gpus <= large)
    return is_partitioned


def _partitioned_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    if shape.slice is None:
        count = np.count_nonzero(ledger.eligible(shape)[:, place])
        total = _count(int(ledger.gpus_total[place]), "GPU")
        return f"has {count} whole of {total}, the others are cut by MIG; {requested_text(shape)}"
    kinds = [gpu.kind for gpu in ledger.views[place].gpus if gpu.kind is not None]
    offered = sorted({profile.name for kind in kinds for profile in kind.offered})
    modes = sorted({MODE_NAMES[kind.mode] for kind in kinds})
    has = f"has {', '.join(offered)}" if offered else "has whole GPUs only"
    has = f"has shares by {' and '.join(modes)}" if modes and not offered else has
    return f"{has}, {requested_text(shape)}"


def _not_isolated(ledger: Ledger, shape: JobShape) -> Mask:
    """Reject appliances where only jobs that the job must not share a GPU with are in its way."""
    if shape.slice is None or ledger.slices is None:
        return np.zeros(ledger.size, np.bool_)
    room = np.count_nonzero(ledger.with_room(shape, is_isolated=False), axis=0)
    is_blocked: Mask = (room > 0) & (count_free(ledger, shape) == 0)
    return is_blocked


def _not_isolated_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    count = np.count_nonzero(ledger.with_room(shape, is_isolated=False)[:, place])
    return (
        f"{_count(int(count), 'GPU')} with room, where jobs of others run that the tenant wants "
        f"isolated from it; {requested_text(shape)}"
    )


def _memory_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    free, total = max(int(ledger.memory_free[place]), 0), int(ledger.memory_total[place])
    wanted = format_size(shape.memory_bytes)
    return f"{format_size(free)} of {format_size(total)} of memory free, {wanted} requested"


def _cpus_fact(ledger: Ledger, shape: JobShape, place: int) -> str:
    free, total = max(float(ledger.cpus_free[place]), 0.0), float(ledger.cpus_total[place])
    return f"{free:g} of {total:g} CPU cores free, {shape.cpus:g} requested"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_STATE_FACTS: dict[ApplianceState, str] = {
    ApplianceState.ENROLLED: "enrolled, no heartbeat yet",
    ApplianceState.UNREACHABLE: "unreachable",
    ApplianceState.LOST: "lost",
    ApplianceState.REPORTING: "has no agent",
    ApplianceState.SILENT: "has no agent",
}
CHOSEN: Sequence[Filter] = (
    Filter("not_requested", _not_requested, lambda *_: "the job requests another appliance"),
    Filter("label_missing", _missing_labels, _labels_fact),
)
RENTED: Sequence[Filter] = (
    Filter(
        "not_rented",
        not_rented,
        lambda *_: "the job has no highest price, so it stays on own appliances",
        is_of_rentals=True,
    ),
    Filter("rental_refuses", refusing, refusing_fact, is_of_rentals=True),
    *(
        Filter(code, grant_filter.rejects, grant_filter.fact, is_of_rentals=True)
        for code, grant_filter in GRANT_FILTERS.items()
    ),
)
_HOST_TOTALS: Sequence[Filter] = (
    Filter(
        "too_few_gpus",
        lambda ledger, shape: shape.gpus > ledger.gpus_total,
        lambda ledger, shape, at: (
            f"has {_count(len(ledger.views[at].gpus), 'GPU')}, {shape.gpus} requested"
        ),
    ),
    Filter(
        "gpu_model_missing",
        lambda ledger, shape: (
            shape.gpus
            > np.count_nonzero(ledger.large_enough(shape._replace(gpu_memory_bytes=0)), axis=0)
            if shape.gpu_models
            else np.zeros(ledger.size, np.bool_)
        ),
        _eligible_fact,
    ),
    Filter("gpus_partitioned", _partitioned, _partitioned_fact),
    Filter(
        "gpu_memory_too_small",
        lambda ledger, shape: shape.gpus > np.count_nonzero(ledger.eligible(shape), axis=0),
        _eligible_fact,
    ),
    Filter(
        "too_few_cpus",
        lambda ledger, shape: shape.cpus > ledger.cpus_total + CPU_TOLERANCE,
        lambda ledger, shape, at: (
            f"has {ledger.cpus_total[at]:g} CPU cores, {shape.cpus:g} requested"
        ),
    ),
    Filter(
        "too_little_memory",
        lambda ledger, shape: shape.memory_bytes > ledger.memory_total,
        lambda ledger, shape, at: (
            f"has {format_size(int(ledger.memory_total[at]))} of memory, "
            f"{format_size(shape.memory_bytes)} requested"
        ),
    ),
)
TOTALS: Sequence[Filter] = (
    *map(_of_hosts, _HOST_TOTALS),
    Filter("no_node_fits", too_small_nodes, nodes_fact, is_of_clusters=True),
)
FEASIBLE: Sequence[Filter] = (
    CHOSEN[0],
    *RENTED,
    Filter(
        "no_executor",
        lambda ledger, _: ~ledger.executes,
        lambda *_: "has no executor",
    ),
    Filter("executor_limit", _executor_limits, _limit_fact),
    Filter("ability_missing", _unable, _unable_fact),
    Filter("cluster_images", wrong_images, image_fact, is_of_clusters=True),
    CHOSEN[1],
    *TOTALS,
    Filter("partition_refuses", refusing_queues, queue_fact, is_of_clusters=True),
    Filter(
        "not_online",
        lambda ledger, _: _is_in(ledger, *_STATE_FACTS),
        lambda ledger, _, at: _STATE_FACTS[ledger.views[at].state],
    ),
    Filter(
        "drained",
        lambda ledger, _: ledger.drained,
        lambda *_: "drained, accepts no new jobs",
    ),
    Filter(
        "quarantined",
        lambda ledger, _: ledger.quarantined & ~ledger.on_trial,
        lambda ledger, _, at: f"quarantined, jobs can't start: {ledger.views[at].quarantine}",
    ),
    Filter(
        "stale",
        lambda ledger, _: _is_in(ledger, ApplianceState.STALE),
        lambda *_: "no recent heartbeat, accepts no new jobs until it reports again",
    ),
    Filter(
        "appliance_failed",
        lambda ledger, shape: ledger.failed & bool(shape.gpus),
        lambda ledger, _, at: f"failed ({ledger.views[at].failure}), accepts no GPU jobs",
    ),
    _of_hosts(Filter("gpus_failed", _too_few_usable, _failed_fact)),
    Filter(
        "cluster_unavailable",
        unavailable,
        lambda ledger, _, at: f"takes no jobs: {ledger.clusters[at].view.problem}",
        is_of_clusters=True,
    ),
    Filter("nodes_down", no_nodes_up, down_fact, is_of_clusters=True),
)
_HOST_FREE: Sequence[Filter] = (
    Filter(
        "gpus_used_outside",
        _used_outside,
        lambda ledger, shape, at: f"{gpus_free_text(ledger, shape, at)}, {requested_text(shape)}",
        is_needed=lambda ledger, _: ledger.has_used_outside,
    ),
    Filter(
        "gpus_not_isolated",
        _not_isolated,
        _not_isolated_fact,
        is_needed=lambda ledger, shape: shape.slice is not None and ledger.slices is not None,
    ),
    Filter(
        "gpus_busy",
        lambda ledger, shape: shape.gpus > count_free(ledger, shape),
        lambda ledger, shape, at: f"{gpus_free_text(ledger, shape, at)}, {requested_text(shape)}",
        rank=lambda ledger, shape: -count_free(ledger, shape),
        is_needed=lambda _, shape: shape.gpus > 0,
    ),
    Filter(
        "cpus_busy",
        lambda ledger, shape: shape.cpus > ledger.cpus_free + CPU_TOLERANCE,
        _cpus_fact,
        rank=lambda ledger, _: -ledger.cpus_free,
    ),
    Filter(
        "memory_busy",
        lambda ledger, shape: shape.memory_bytes > ledger.memory_free,
        _memory_fact,
        rank=lambda ledger, _: -ledger.memory_free,
    ),
)
FREE: Sequence[Filter] = (
    *map(_of_hosts, _HOST_FREE),
    Filter("contract_full", full_contracts, full_fact, is_of_rentals=True),
    Filter("cluster_busy", full_nodes, busy_fact, is_of_clusters=True),
)
_CODES = [appliance_filter.code for appliance_filter in (*FEASIBLE, *FREE)]
# Of the filter that `jobqueue.placement.reserved` makes for each job.
RESERVED_CODE = "reserved"
# Of the one that `jobqueue.placement.data_wait` makes.
DATA_CODE = "data_missing"
_ORDER = {
    code: order
    for order, code in enumerate([*_CODES, RESERVED_CODE, DATA_CODE, "reserved_for_earlier_job"])
}

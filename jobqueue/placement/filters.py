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
from jobqueue.placement.host_filters import (
    count_free,
    count_text,
    cpus_fact,
    eligible_fact,
    failed_fact,
    gpus_free_fact,
    memory_fact,
    not_isolated,
    not_isolated_fact,
    only_used_outside,
    partitioned,
    partitioned_fact,
    too_few_usable,
)
from jobqueue.placement.ledger import Ledger, Mask
from jobqueue.placement.rental_choice import (
    GRANT_FILTERS,
    full_contracts,
    full_fact,
    not_rented,
    refusing,
    refusing_fact,
)
from jobqueue.placement.views import JobShape
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
            f"has {count_text(len(ledger.views[at].gpus), 'GPU')}, {shape.gpus} requested"
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
        eligible_fact,
    ),
    Filter("gpus_partitioned", partitioned, partitioned_fact),
    Filter(
        "gpu_memory_too_small",
        lambda ledger, shape: shape.gpus > np.count_nonzero(ledger.eligible(shape), axis=0),
        eligible_fact,
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
    _of_hosts(Filter("gpus_failed", too_few_usable, failed_fact)),
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
        only_used_outside,
        gpus_free_fact,
        is_needed=lambda ledger, _: ledger.has_used_outside,
    ),
    Filter(
        "gpus_not_isolated",
        not_isolated,
        not_isolated_fact,
        is_needed=lambda ledger, shape: shape.slice is not None and ledger.slices is not None,
    ),
    Filter(
        "gpus_busy",
        lambda ledger, shape: shape.gpus > count_free(ledger, shape),
        gpus_free_fact,
        rank=lambda ledger, shape: -count_free(ledger, shape),
        is_needed=lambda _, shape: shape.gpus > 0,
    ),
    Filter(
        "cpus_busy",
        lambda ledger, shape: shape.cpus > ledger.cpus_free + CPU_TOLERANCE,
        cpus_fact,
        rank=lambda ledger, _: -ledger.cpus_free,
    ),
    Filter(
        "memory_busy",
        lambda ledger, shape: shape.memory_bytes > ledger.memory_free,
        memory_fact,
        rank=lambda ledger, _: -ledger.memory_free,
    ),
)
FREE: Sequence[Filter] = (
    *map(_of_hosts, _HOST_FREE),
    Filter("contract_full", full_contracts, full_fact, is_of_rentals=True),
    Filter("cluster_busy", full_nodes, busy_fact, is_of_clusters=True),
)
_CODES = [appliance_filter.code for appliance_filter in (*FEASIBLE, *FREE)]
# Of the filter that `jobqueue.placement.plan_state` makes for each job.
RESERVED_CODE = "reserved"
# Of the one that `jobqueue.placement.data_locality` makes.
DATA_CODE = "data_missing"
_ORDER = {
    code: order
    for order, code in enumerate([*_CODES, RESERVED_CODE, DATA_CODE, "reserved_for_earlier_job"])
}

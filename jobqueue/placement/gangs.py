"""Gangs: jobs whose members start together or not at all, each on GPUs of one appliance.

A waiting gang holds nothing, so no two gangs can wait for what the other holds. The first gangs of
the queue are protected like single jobs: the appliances on which they fit first are reserved, and
later jobs are backfilled around that. Members go to one appliance if they fit there, else to one
NVLink domain, else to one site, else anywhere; each time to as few appliances as possible, and of
these to the ones with more of the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec
import numpy as np

from jobqueue.executors.abilities import Need
from jobqueue.placement.clusters import CPU_TOLERANCE
from jobqueue.placement.decisions import Action, Decision, Rule, stopping_text
from jobqueue.placement.filters import apply_filters, most_relevant_first
from jobqueue.placement.ledger import Ints, Ledger, Mask
from jobqueue.placement.plan import Planner
from jobqueue.placement.preemption import Rules, stoppable_jobs, victims_at
from jobqueue.placement.quotas import Verdict
from jobqueue.placement.views import JobShape, JobView, Reach, RunningJob

# Waiting gangs that are protected; those behind them wait for their turn.
MAX_PROTECTED = 10
# Appliances with jobs that could be stopped, which are examined for one gang.
MAX_EXAMINED = 1000
_UNBOUNDED = 2**31

Places = Mapping[int, int]
"""The number of members on each appliance, by its place in the ledger."""


def decide_all(planner: Planner, job: JobView) -> list[Decision]:
    """Decide for a job; for a gang, decide for each of its members in their order."""
    if len(job.members) < 2:  # noqa: PLR2004 - one member is no gang
        return [planner.decide(job)]
    verdict = planner.quotas.check(job.whole)
    held = planner.cap_reason(job) or verdict.refusal
    if held:
        return _for_members(job, Decision(job_id=job.id, action=Action.HELD, reason=held))
    allowed = msgspec.structs.replace(job, gpu_models=verdict.job.gpu_models)
    started = start_all(planner, allowed) or _fetch_first(planner, allowed)
    if started:
        return started
    decisions = _for_members(job, wait_for_all(planner, allowed, verdict))
    if decisions[0].action is not Action.WAIT or not _bound_places(planner, job):
        return decisions
    # They stay bound: the data that was fetched for them stays in the caches.
    return [
        replace(decision, action=Action.STAY, appliance_id=appliance_id)
        for decision, appliance_id in zip(decisions, job.member_places, strict=True)
    ]


def start_all(planner: Planner, job: JobView) -> list[Decision]:
    """Return the decisions for all members of a gang that can start now; none if it can't."""
    places = _free_places(planner, job)
    return [] if places is None else _assign(planner, job, places)


def _fetch_first(planner: Planner, job: JobView) -> list[Decision]:
    """Let a gang wait without GPUs where all members have room, until their data is there.

    Returns:
        The decision for each member; none if the gang waits for something else.
    """
    far = planner.far(job)
    if far is None:
        return []
    bound = _bound_places(planner, job)
    if bound and not far[bound].any():
        return []
    ordered = bound
    if not ordered:
        places = _free_places(planner, job, is_near=False)
        if places is None:
            return []
        ordered = [place for place in sorted(places) for _ in range(places[place])]
    is_new = not bound or job.data_wait_since is None
    reason = planner.fetching_reason(job, ordered)
    for place in ordered:
        planner.data_wait.promise(job, place)
    return [
        Decision(
            job_id=member_id,
            action=Action.BIND if is_new else Action.STAY,
            reason=reason,
            appliance_id=planner.ledger.views[place].id,
            policy=Rule.GANG,
            rejections=planner.feasible(job.shape)[1],
            waits_for_data=True,
            **planner.data_of(job, place),
        )
        for member_id, place in zip(job.members, ordered, strict=True)
    ]


def _bound_places(planner: Planner, job: JobView) -> list[int]:
    """Return the places that the members are bound to, in their order; none if one can't be."""
    index, (feasible, _) = planner.ledger.index, planner.feasible(job.shape)
    places = [index[ident] for ident in job.member_places if ident in index]
    is_whole = len(places) == len(job.members) and feasible[places].all()
    return places if is_whole else []


def _open_places(planner: Planner, job: JobView, feasible: Mask) -> Mask:
    """Return where members may start; once they are bound, only where their data is."""
    open_places = feasible & ~planner.kept_places(job)
    return planner.near(job, open_places) if _bound_places(planner, job) else open_places


def fitting_members(
    shape: JobShape, *, gpus: Mask, cpus: np.ndarray, memory_bytes: np.ndarray
) -> Ints:
    """Return how many members fit on each appliance.

    Args:
        shape: the requirements of a member.
        gpus: the usable GPUs, by position and appliance.
        cpus: free cores by appliance.
        memory_bytes: free memory by appliance.
    """
    counts: Ints = np.full(cpus.size, _UNBOUNDED, np.int64)
    if shape.gpus:
        counts = np.count_nonzero(gpus, axis=0) // shape.gpus
    if shape.cpus > 0:
        counts = np.minimum(counts, np.floor((cpus + CPU_TOLERANCE) / shape.cpus).astype(np.int64))
    if shape.memory_bytes > 0:
        counts = np.minimum(counts, memory_bytes // shape.memory_bytes)
    return np.maximum(counts, 0)


def capacity(ledger: Ledger, shape: JobShape, places: Mask, *, is_usable: bool = False) -> int:
    """Return how many members some appliances could run at once if they were idle.

    With `is_usable`, failed GPUs don't count.
    """
    gpus = ledger.eligible(shape)
    counts = fitting_members(
        shape,
        gpus=gpus & ledger.usable if is_usable else gpus,
        cpus=ledger.cpus_total,
        memory_bytes=ledger.memory_total,
    )
    # A gang needs appliances: the nodes of a cluster are its scheduler's.
    return int(counts[places & ~ledger.is_cluster].sum())


def choose_places(
    ledger: Ledger,
    counts: Ints,
    nodes: int,
    levels: Ints | None = None,
    *,
    is_connected: bool = False,
) -> Places | None:
    """Return the closest appliances for all members, or None if they don't fit.

    Args:
        ledger: has the sites and NVLink domains.
        counts: how many members fit on each appliance.
        nodes: the number of members.
        levels: how much of the data each appliance has, by `DataLocality`; None without data.
        is_connected: whether they need a private network, which not every appliance extends to
            others.
    """
    levels = np.zeros(ledger.size, np.int64) if levels is None else levels
    sites = ledger.network_sites if is_connected else ledger.sites
    for groups, reach in (
        (np.arange(ledger.size), Reach.ALONE),
        (ledger.nvlink_domains, Reach.SITE),
        (sites, Reach.SITE),
        (None, Reach.ANYWHERE),
    ):
        reaching = np.where(ledger.reach >= reach, counts, 0) if is_connected else counts
        places = _in_one_group(reaching, nodes, groups, levels)
        if places is not None:
            return places
    return None


def is_connected(job: JobView) -> bool:
    """Return whether the members of a gang need a private network."""
    return Need.GANG_NETWORK in job.needs


def _in_one_group(counts: Ints, nodes: int, groups: Ints | None, levels: Ints) -> Places | None:
    """Return the places in the group that needs the fewest appliances.

    Of several such groups, those in the one with more of the data, then in the fullest one.
    """
    able = np.flatnonzero(counts > 0)
    if groups is None:
        groups = np.zeros(counts.size, np.int64)
    able = able[groups[able] >= 0]
    if not able.size:
        return None
    totals = np.bincount(groups[able], weights=counts[able])
    best: tuple[int, int, float, Places] | None = None
    for group in np.flatnonzero(totals >= nodes).tolist():
        places = _fewest(able[groups[able] == group], counts, nodes, levels)
        level = sum(int(levels[place]) for place in places)
        rank = (len(places), -level, float(totals[group]))
        if best is None or rank < best[:3]:
            best = (*rank, places)
    return best and best[3]


def _fewest(able: np.ndarray, counts: Ints, nodes: int, levels: Ints) -> Places:
    """Return the fewest of some places that hold all members.

    Of those that hold as many, the ones with more of the data come first; the last one is the
    fullest of them.
    """
    ordered = able[np.lexsort((-levels[able], -counts[able]))]
    needed = int(np.searchsorted(np.cumsum(counts[ordered]), nodes)) + 1
    places = {int(place): int(counts[place]) for place in ordered[: needed - 1]}
    rest = nodes - sum(places.values())
    enough = [place for place in ordered[needed - 1 :].tolist() if counts[place] >= rest]
    places[min(enough, key=lambda place: (-levels[place], counts[place]))] = rest
    return places


def _free_places(planner: Planner, job: JobView, *, is_near: bool = True) -> Places | None:
    """Return where all members can start now without delaying a job that is protected.

    Without `is_near`, they may have to wait for their data there.
    """
    ledger = planner.ledger
    feasible, _ = planner.feasible(job.shape)
    candidates = feasible & ~ledger.on_trial & ~planner.kept_places(job)
    if is_near:
        candidates = planner.near(job, candidates)
    avoided = planner.failed_on(job)
    levels = planner.data.levels(job.datasets) if job.datasets else None
    for is_healthy, mask in ((True, candidates & ~avoided), (False, candidates)):
        counts = np.where(mask, _free_members(ledger, job.shape, is_healthy=is_healthy), 0)
        while (
            places := choose_places(
                ledger, counts, len(job.members), levels, is_connected=is_connected(job)
            )
        ) is not None:
            delaying = [place for place in places if _delays(planner, job, place, places[place])]
            if not delaying:
                return places
            counts[delaying] = 0
    return None


def _free_members(ledger: Ledger, shape: JobShape, *, is_healthy: bool = False) -> Ints:
    gpus = (ledger.gpu_free >= shape.gpu_milli) & ledger.eligible(shape)
    if is_healthy and ledger.has_degraded:
        gpus &= ~ledger.degraded
    return fitting_members(shape, gpus=gpus, cpus=ledger.cpus_free, memory_bytes=ledger.memory_free)


def _delays(planner: Planner, job: JobView, place: int, count: int) -> bool:
    """Return whether members would delay a protected job, or use what is reserved for others."""
    members = job.scaled(count)
    if planner.kept_places(members)[place]:
        return True
    gpus = planner.ledger.pick_gpus(place, members.shape)
    return planner.reservations.would_delay(members, place, gpus, now=planner.now)


def _assign(planner: Planner, job: JobView, places: Places) -> list[Decision]:
    ledger, decisions = planner.ledger, []
    ordered = [place for place in sorted(places) for _ in range(places[place])]
    names = _names(ledger, places)
    for member_id, place in zip(job.members, ordered, strict=True):
        member = msgspec.structs.replace(job, id=member_id, members=())
        gpus = ledger.pick_gpus(place, job.shape)
        planner.occupy(member, place, gpus)
        view, text = ledger.views[place], planner.data.sentence(job.datasets, place)
        decisions.append(
            Decision(
                job_id=member_id,
                action=Action.ASSIGN,
                reason=f"All {len(ordered)} members fit on {names}.{text}",
                appliance_id=view.id,
                policy=Rule.GANG,
                gpu_uuids=tuple(view.gpus[slot].uuid for slot in gpus),
                **planner.data_of(job, place),
            )
        )
    return decisions


def wait_for_all(planner: Planner, job: JobView, verdict: Verdict) -> Decision:
    """Protect a gang where it fits first, and say what it waits for."""
    ledger, nodes = planner.ledger, len(job.members)
    feasible, rejections = planner.feasible(job.shape)
    limit = capacity(ledger, job.shape, feasible, is_usable=True)
    if limit < nodes:
        reason = f"The appliances that accept jobs hold {limit} of the gang's {nodes} members."
        return Decision(job_id=job.id, action=Action.UNPLACED, reason=reason, rejections=rejections)
    if is_connected(job) and (apart := _apart(ledger, job, feasible)):
        return Decision(job_id=job.id, action=Action.UNPLACED, reason=apart, rejections=rejections)
    _, busy = apply_filters(planner.free_filters(job), ledger, job.shape, feasible)
    open_now = _open_places(planner, job, feasible)
    fitting = min(int(_free_members(ledger, job.shape)[open_now].sum()), nodes)
    reason = f"{fitting} of {nodes} members fit now, and all start together."
    places, victims = _protect(planner, job, feasible, verdict)
    if places:
        reason += f" The gang waits for {_names(ledger, places)}{stopping_text(victims)}."
    guarantor = planner.quotas.name_of(verdict.guarantor) if victims else ""
    if guarantor:
        reason += f" The guarantee of {guarantor!r} covers it."
    return Decision(
        job_id=job.id,
        action=Action.WAIT,
        reason=reason,
        policy=Rule.RECLAIM if guarantor else Rule.GANG,
        rejections=most_relevant_first([*rejections, *busy]),
        victims=[victim.job_id for victim in victims],
        guarantor=guarantor,
    )


def _apart(ledger: Ledger, job: JobView, feasible: Mask) -> str:
    """Return why the members of a gang could not reach each other even on idle appliances."""
    shape = job.shape
    counts = fitting_members(
        shape,
        gpus=ledger.eligible(shape) & ledger.usable,
        cpus=ledger.cpus_total,
        memory_bytes=ledger.memory_total,
    )
    counts = np.where(feasible, counts, 0)
    if choose_places(ledger, counts, len(job.members), is_connected=True) is not None:
        return ""
    places = np.flatnonzero((counts > 0) & (ledger.reach < Reach.ANYWHERE))
    example = ledger.views[int(places[0])].name if places.size else ""
    return (
        f"No site has room for all {len(job.members)} members, and the gang's private network does "
        f"not reach beyond it: {example} has no public_address or no WireGuard."
        if example
        else ""
    )


def _protect(
    planner: Planner, job: JobView, feasible: Mask, verdict: Verdict
) -> tuple[Places, Sequence[RunningJob]]:
    """Reserve the appliances on which the gang fits first; return them, and the jobs to stop."""
    reservations = planner.reservations
    if reservations.gangs >= MAX_PROTECTED:
        return {}, ()
    open_places = _open_places(planner, job, feasible) & ~planner.ledger.on_trial
    open_places[list(reservations.jobs)] = False
    at, places, victims = planner.now, None, list[RunningJob]()
    reclaim = verdict if verdict.guaranteed is not None else None
    if reclaim is not None or planner.may_preempt(job):
        rules = planner.rules(reclaim)
        near = planner.near(job, open_places)
        places, victims = _places_by_preemption(planner, job, near, rules)
    if places is None:
        victims = []
        start = _earliest(planner.ledger, job, open_places, now=planner.now)
        if start is None:
            return {}, ()
        at, places = start
    reservations.gangs += 1
    for place, count in places.items():
        reservations.add(place, job.scaled(count), not_before=at)
    return places, victims


def _earliest(
    ledger: Ledger, job: JobView, open_places: Mask, *, now: datetime
) -> tuple[datetime, Places] | None:
    """Return when and where all members fit, once running jobs have reached their limits."""
    ends = _Ends(ledger, job, open_places)

    def _choose(index: int) -> Places | None:
        counts = ends.members_at(index)
        return choose_places(ledger, counts, len(job.members), is_connected=is_connected(job))

    last = len(ends.times) - 1
    first, beyond = 0, len(ends.times)
    while first < beyond:
        middle = (first + beyond) // 2
        if _choose(middle) is None:
            first = middle + 1
        else:
            beyond = middle
    if first > last:
        return None
    places = _choose(first)
    return None if places is None else (max(ends.times[first], now), places)


class _Ends:
    """The ends of the running jobs on some appliances, and how many members fit after each."""

    def __init__(self, ledger: Ledger, job: JobView, open_places: Mask) -> None:
        self._ledger, self._shape, self._open = ledger, job.shape, open_places
        allocated = [
            (allocation, place)
            for place in np.flatnonzero(open_places).tolist()
            for allocation in ledger.allocations[place]
        ]
        allocated.sort(key=lambda pair: pair[0].ends_at)
        self._allocated = allocated
        self.times = sorted({allocation.ends_at for allocation, _ in allocated})

    def members_at(self, index: int) -> Ints:
        """Return how many members fit on each appliance from the time of that index on."""
        ledger, shape, at = self._ledger, self._shape, self.times[index]
        gpu_free = ledger.gpu_free.copy()
        cpus, memory_bytes = ledger.cpus_free.copy(), ledger.memory_free.copy()
        for allocation, place in self._allocated:
            if allocation.ends_at > at:
                break
            gpu_free[list(allocation.gpus), place] += allocation.gpu_milli
            cpus[place] += allocation.cpus
            memory_bytes[place] += allocation.memory_bytes
        gpus = (gpu_free >= shape.gpu_milli) & ledger.eligible(shape)
        counts = fitting_members(shape, gpus=gpus, cpus=cpus, memory_bytes=memory_bytes)
        return np.where(self._open, counts, 0)


def _places_by_preemption(
    planner: Planner, job: JobView, open_places: Mask, rules: Rules
) -> tuple[Places | None, list[RunningJob]]:
    """Return where all members fit once other jobs have been stopped, and these jobs.

    Appliances where stopping gains nothing are left alone, as far as the members then still fit.
    """
    ledger, nodes = planner.ledger, len(job.members)
    counts: Ints = np.where(open_places, _free_members(ledger, job.shape), 0)
    unstopped = counts.copy()
    stoppable = [
        place
        for place in np.flatnonzero(open_places).tolist()
        if any(rules.is_candidate(job, running) for running in ledger.views[place].running)
    ]
    for place in stoppable[:MAX_EXAMINED]:
        counts[place] = _members_after_stops(planner, job, place, rules)
    places = choose_places(ledger, counts, nodes, is_connected=is_connected(job))
    for place in sorted(places or (), key=lambda place: counts[place] - unstopped[place]):
        fewer = counts.copy()
        fewer[place] = unstopped[place]
        others = choose_places(ledger, fewer, nodes, is_connected=is_connected(job))
        if others is not None:
            counts, places = fewer, others
    victims: list[RunningJob] = []
    for place, count in (places or {}).items():
        stopped = victims_at(job.scaled(count), ledger, place, rules, now=planner.now)
        if stopped is None:
            return None, []
        victims += [running for running in stopped if not rules.is_stopping(running)]
    # What may stop on each appliance may be too much for a guarantee in sum.
    return (places, victims) if rules.may_stop(job, victims) else (None, [])


def _members_after_stops(planner: Planner, job: JobView, place: int, rules: Rules) -> int:
    ledger, shape = planner.ledger, job.shape
    stoppable = {running.job_id for running in stoppable_jobs(job, ledger, place, rules)}
    gpu_free = ledger.gpu_free[:, place].copy()
    cpus, memory_bytes = float(ledger.cpus_free[place]), int(ledger.memory_free[place])
    for allocation in ledger.allocations[place]:
        if allocation.job_id in stoppable:
            gpu_free[list(allocation.gpus)] += allocation.gpu_milli
            cpus, memory_bytes = cpus + allocation.cpus, memory_bytes + allocation.memory_bytes
    able = np.array(ledger.eligible_at(place, shape), np.bool_)
    counts = fitting_members(
        shape,
        gpus=((gpu_free >= shape.gpu_milli) & able)[:, None],
        cpus=np.array([cpus]),
        memory_bytes=np.array([memory_bytes]),
    )
    return int(counts[0])


def _for_members(job: JobView, decision: Decision) -> list[Decision]:
    """Return the decision for each member; the first stops the victims for all."""
    first, *others = job.members
    decisions = [replace(decision, job_id=member_id, victims=()) for member_id in others]
    return [replace(decision, job_id=first), *decisions]


def _names(ledger: Ledger, places: Places) -> str:
    names = [ledger.views[place].name for place in sorted(places)]
    shown = names[:4]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + rest

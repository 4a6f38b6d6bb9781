"""The timeline of a replay, when jobs started and ended, and the figures that follow from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from jobqueue.simulation.recording import QueueRules, RecordedJob, Recording
from protocol.gpu_slices import WHOLE_GPU

POINTS = 200
_JOULES_PER_KILOWATT_HOUR = 3.6e6
_HOUR = 3600.0
_SIZES = ((0, 0, "no GPU"), (1, 1, "1 GPU"), (2, 4, "2 to 4 GPUs"), (5, 8, "5 to 8 GPUs"))


@dataclass(slots=True)
class Timeline:
    """What happened; NaN where a job never started.

    Attributes:
        starts: when each job started for the last time, in seconds.
        ends: when it ended.
        models: the index in `model_names` of the GPUs of each job; -1 without GPUs.
        lost: the runs that preemption cut off: the job, from, until.
        impossible: the jobs that fit no appliance, even if it is idle.
    """

    starts: np.ndarray
    ends: np.ndarray
    models: np.ndarray
    model_names: list[str]
    lost: list[tuple[int, float, float]] = field(default_factory=list)
    impossible: list[int] = field(default_factory=list)


class Waits(msgspec.Struct, kw_only=True):
    """How long the jobs of a group waited; None if none started."""

    jobs: int
    started: int
    wait_seconds_p50: float | None
    wait_seconds_p95: float | None


class ProjectFigures(Waits, kw_only=True):
    """A project; 0 are the jobs without one.

    Attributes:
        gpu_hours: what its jobs used until the last job was submitted.
        served_ratio: its part of what all used until then.
        entitled_ratio: its part by the shares, where what one doesn't ask for is shared by others.
    """

    project: int
    shares: float
    gpu_hours: float
    served_ratio: float
    entitled_ratio: float


class SizeFigures(Waits, kw_only=True):
    """Jobs of a size."""

    size: str


class Results(msgspec.Struct, kw_only=True):
    """The figures of one replay; ratios are of all GPUs over the whole time.

    Attributes:
        impossible: jobs that fit no appliance, even if it is idle.
        seconds: from the first submission to the last end.
        allocated_ratio: GPUs allocated, until the last job was submitted.
        blocked_ratio: GPUs free although jobs with GPUs waited, until then: fragmentation, missing
            cores or memory, reservations and caps.
        jain_index: the fairness among projects, 1 is fair; of their parts by what they are
            entitled to.
        share_deviation: the largest difference of a project's part from what it is entitled to.
        preemptions: jobs that were displaced, and what that lost.
        energy_kilowatt_hours: of allocated GPUs; None if the power of a model is unknown.
        unknown_power: the models whose power is unknown.
        allocated_over_time: ratios, at the middles of `POINTS` equal parts of `seconds`.
    """

    rules: QueueRules
    appliances: int
    gpus: int
    jobs: int
    impossible: int
    seconds: float
    allocated_ratio: float
    blocked_ratio: float
    waits: Waits
    projects: list[ProjectFigures]
    sizes: list[SizeFigures]
    jain_index: float
    share_deviation: float
    preemptions: int
    preempted_gpu_hours: float
    energy_kilowatt_hours: float | None
    unknown_power: list[str]
    allocated_over_time: list[float]
    waiting_over_time: list[float]


def empty_timeline(recording: Recording) -> Timeline:
    """Return the timeline of a replay in which nothing has happened yet."""
    count = len(recording.jobs)
    names = {gpu.model for appliance in recording.appliances for gpu in appliance.gpus}
    return Timeline(
        starts=np.full(count, np.nan),
        ends=np.full(count, np.nan),
        models=np.full(count, -1, np.int16),
        model_names=sorted(names),
    )


def figures(recording: Recording, timeline: Timeline) -> Results:
    """Return the figures of a replay."""
    jobs = recording.jobs
    table = _Table(jobs, timeline)
    gpus = sum(len(appliance.gpus) for appliance in recording.appliances)
    first, last = float(table.submitted[0]), float(table.submitted[-1])
    end = float(np.nanmax(table.ends, initial=last))
    edges = np.linspace(first, max(end, first + 1.0), POINTS + 1)
    projects = _projects(recording, table)
    parts = [
        project.served_ratio / project.entitled_ratio
        for project in projects
        if project.entitled_ratio
    ]
    deviations = [abs(project.served_ratio - project.entitled_ratio) for project in projects]
    energy, unknown = _energy(recording, table)
    return Results(
        rules=recording.rules,
        appliances=len(recording.appliances),
        gpus=gpus,
        jobs=len(jobs),
        impossible=len(timeline.impossible),
        seconds=round(end - first, 3),
        allocated_ratio=_ratio(table.gpu_seconds(first, last).sum(), gpus * (last - first)),
        blocked_ratio=_blocked(table, gpus, first, last),
        waits=_waits(table, np.ones(len(jobs), np.bool_)),
        projects=projects,
        sizes=list(_sizes(table)),
        jain_index=_jain(parts),
        share_deviation=round(max(deviations, default=0.0), 4),
        preemptions=len(timeline.lost),
        preempted_gpu_hours=round(table.lost_gpu_seconds / _HOUR, 3),
        energy_kilowatt_hours=energy,
        unknown_power=unknown,
        allocated_over_time=means(table.starts, table.ends, table.sizes / max(gpus, 1), edges),
        waiting_over_time=means(table.submitted, table.starts, np.ones(len(jobs)), edges),
    )


class _Table:
    """The jobs as arrays; sizes are in GPUs, and jobs that never started end nowhere."""

    def __init__(self, jobs: Sequence[RecordedJob], timeline: Timeline) -> None:
        count = len(jobs)
        self.submitted = np.fromiter((job.submitted_seconds for job in jobs), np.float64, count)
        self.gpus = np.fromiter((job.gpus * job.nodes for job in jobs), np.int64, count)
        milli = np.fromiter((job.gpu_milli for job in jobs), np.int64, count)
        self.sizes = self.gpus * milli / WHOLE_GPU
        self.project = np.fromiter((job.project for job in jobs), np.int64, count)
        self.runs = np.fromiter((job.run_seconds for job in jobs), np.float64, count)
        self.starts, self.ends, self.models = timeline.starts, timeline.ends, timeline.models
        self.lost_gpu_seconds = sum(
            float(self.sizes[number]) * (until - since) for number, since, until in timeline.lost
        )

    def gpu_seconds(self, since: float, until: float) -> np.ndarray:
        """Return the GPU time of each job within a period."""
        ran = np.clip(self.ends, since, until) - np.clip(self.starts, since, until)
        seconds: np.ndarray = np.nan_to_num(ran) * self.sizes
        return seconds


def _waits(table: _Table, chosen: np.ndarray) -> Waits:
    waited = (table.starts - table.submitted)[chosen]
    waited = waited[~np.isnan(waited)]
    p50, p95 = np.percentile(waited, (50, 95)).round(3).tolist() if waited.size else (None, None)
    return Waits(
        jobs=int(chosen.sum()),
        started=int(waited.size),
        wait_seconds_p50=p50,
        wait_seconds_p95=p95,
    )


def _projects(recording: Recording, table: _Table) -> list[ProjectFigures]:
    first, last = float(table.submitted[0]), float(table.submitted[-1])
    served = table.gpu_seconds(first, last)
    demanded = np.minimum(table.runs, last - table.submitted) * table.sizes
    numbers = [int(number) for number in np.unique(table.project)]
    listed = recording.shares()
    shares = {number: listed.get(number, 1.0) for number in numbers}
    of_project = {number: table.project == number for number in numbers}
    total = float(served.sum())
    demands = {number: float(demanded[of_project[number]].sum()) for number in numbers}
    entitled = entitlements(demands, shares, total)
    return [
        ProjectFigures(
            project=number,
            shares=shares[number],
            gpu_hours=round(float(served[of_project[number]].sum()) / _HOUR, 3),
            served_ratio=_ratio(served[of_project[number]].sum(), total),
            entitled_ratio=_ratio(entitled[number], total),
            **msgspec.structs.asdict(_waits(table, of_project[number])),
        )
        for number in numbers
    ]


def entitlements(
    demands: Mapping[int, float], shares: Mapping[int, float], total: float
) -> dict[int, float]:
    """Divide a total by shares; what one doesn't demand is divided among the others.

    Source: max-min fairness with weights, by progressive filling.
    """
    entitled: dict[int, float] = {}
    open_ones = set(demands)
    left = total
    while open_ones:
        by_share = left / sum(shares[number] for number in open_ones)
        satisfied = {number for number in open_ones if demands[number] <= by_share * shares[number]}
        if not satisfied:
            return entitled | {number: by_share * shares[number] for number in open_ones}
        entitled |= {number: demands[number] for number in satisfied}
        left -= sum(demands[number] for number in satisfied)
        open_ones -= satisfied
    return entitled


def _sizes(table: _Table) -> Iterator[SizeFigures]:
    sizes = (*_SIZES, (_SIZES[-1][1] + 1, int(table.gpus.max(initial=0)), "more than 8 GPUs"))
    for least, largest, name in sizes:
        chosen = (table.gpus >= least) & (table.gpus <= largest)
        if chosen.any():
            yield SizeFigures(size=name, **msgspec.structs.asdict(_waits(table, chosen)))


def _jain(parts: Sequence[float]) -> float:
    """Return Jain's index: 1 if all are equal, 1 / n if one has everything."""
    squares = sum(part * part for part in parts)
    return round(sum(parts) ** 2 / (len(parts) * squares), 4) if squares else 1.0


def _energy(recording: Recording, table: _Table) -> tuple[float | None, list[str]]:
    seconds = np.nan_to_num((table.ends - table.starts) * table.sizes)
    joules, unknown = 0.0, []
    for index, model in enumerate(recording_models(recording)):
        used = float(seconds[table.models == index].sum())
        watts = recording.watts_by_model.get(model)
        if used and watts is None:
            unknown.append(model or "unknown model")
        joules += used * (watts or 0.0)
    energy = None if unknown else round(joules / _JOULES_PER_KILOWATT_HOUR, 3)
    return energy, unknown


def recording_models(recording: Recording) -> list[str]:
    """Return the models of a recording, in the order of `Timeline.model_names`."""
    return sorted({gpu.model for appliance in recording.appliances for gpu in appliance.gpus})


def _blocked(table: _Table, gpus: int, since: float, until: float) -> float:
    """Return the part of GPU time that was free while jobs with GPUs waited."""
    started = ~np.isnan(table.starts)
    waits = started & (table.gpus > 0)
    instants = np.concatenate(
        [table.submitted[waits], table.starts[waits], table.starts[started], table.ends[started]]
    )
    waiting = np.concatenate(
        [np.ones(waits.sum()), -np.ones(waits.sum()), np.zeros(2 * started.sum())]
    )
    used = np.concatenate([np.zeros(2 * waits.sum()), table.sizes[started], -table.sizes[started]])
    order = np.argsort(instants, kind="stable")
    at = np.clip(instants[order], since, until)
    is_waiting = np.cumsum(waiting[order])[:-1] > 0
    free = gpus - np.cumsum(used[order])[:-1]
    blocked = (np.diff(at) * free * is_waiting).sum()
    return _ratio(blocked, gpus * (until - since))


def means(
    since: np.ndarray, until: np.ndarray, weights: np.ndarray, edges: np.ndarray
) -> list[float]:
    """Return the mean sum of the weights of those that last, in each part between edges."""
    lasting = ~np.isnan(since) & ~np.isnan(until)
    area = np.zeros(len(edges))
    for instants, sign in ((since[lasting], 1.0), (until[lasting], -1.0)):
        order = np.argsort(instants)
        ordered, summed = instants[order], np.cumsum(weights[lasting][order])
        moments = np.cumsum(weights[lasting][order] * ordered)
        # What has begun (or ended) by an edge has lasted from its instant to the edge.
        index = np.searchsorted(ordered, edges, side="right")
        summed, moments = np.append(0.0, summed)[index], np.append(0.0, moments)[index]
        area += sign * (summed * edges - moments)
    means: list[float] = (np.diff(area) / np.diff(edges)).round(4).tolist()
    return means


def _ratio(part: float, whole: float) -> float:
    return round(float(part) / float(whole), 4) if whole else 0.0

"""What slows a job down: the host's cause that goes with the times in which its GPUs wait.

The run is divided into windows. In some, the GPUs wait; in some of those, the job's CPUs are
full, or its processes wait for disks or memory. The cause with the largest share of all windows is
the bottleneck, if the share is large enough to matter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from core.clock import NS_PER_SECOND
from jobqueue.models import Attempt, Job
from timeseries.store import APPLIANCE_TAG, RangeQuery, Store

# Shorter windows have too few samples, more of them say no more.
MIN_WINDOW_SECONDS = 30
MAX_WINDOWS = 240
# GPUs that are less busy than this wait for something.
WAITING_BELOW_PERCENT = 60.0
MIN_SHARE = 0.2
MIN_WINDOWS = 4
FAR_MEMORY_PERCENT = 50.0


class Measure(NamedTuple):
    """A field that says something about a cause."""

    measurement: str
    field: str


CPU = Measure("attempt", "cpu_percent")
FAR_MEMORY = Measure("container", "remote_memory_percent")
_BY_JOB = ("gpu", "gpu_slice", "attempt", "container")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause for which GPUs wait.

    Attributes:
        code: stable, for programs.
        measures: what shows it, each from this value on; of `CPU`, a share of the CPUs asked for.
        text: completes "... % of the time the GPUs wait while".
        advice: what to change.
    """

    code: str
    measures: Mapping[Measure, float]
    text: str
    advice: str


CAUSES = (
    Cause(
        "cpu",
        {
            CPU: 0.9,
            Measure("container", "cpu_throttled_percent"): 25.0,
            Measure("container", "cpu_pressure_percent"): 40.0,
        },
        "the job's CPUs are full",
        "Request more CPUs, add workers that load data, or do less work on each sample.",
    ),
    Cause(
        "disk",
        {Measure("container", "io_pressure_percent"): 25.0},
        "its processes wait for disks",
        "Copy the data to a local disk first, store it in fewer and larger files, or read ahead.",
    ),
    Cause(
        "memory",
        {Measure("container", "memory_pressure_percent"): 15.0},
        "its processes wait for memory",
        "Request more memory: what it reads does not stay in the page cache.",
    ),
    Cause(
        "host",
        {
            Measure("cpu", "steal_percent"): 10.0,
            Measure("cpu", "iowait_percent"): 30.0,
        },
        "other work of the host takes its CPUs or disks",
        "Ask the admin of the appliance what runs beside the jobs.",
    ),
)


class Evidence(NamedTuple):
    """A measured value that the finding rests on: its average while the GPUs wait."""

    measurement: str
    field: str
    value: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A finding: `share_ratio` of the run in which the GPUs wait for this cause."""

    code: str
    share_ratio: float
    sentence: str
    evidence: tuple[Evidence, ...]


Windows = Mapping[Measure, Mapping[int, float]]


def measure_windows(
    store: Store, job: Job, attempt: Attempt, gpu: Measure, *, start_ns: int, end_ns: int
) -> Windows:
    """Return the averages of all measures in windows of an attempt, by the window's start.

    `gpu` is what says how busy its GPUs are, or its slice.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    shortest_ns = MIN_WINDOW_SECONDS * NS_PER_SECOND
    step_ns = shortest_ns * max(1, -(-(end_ns - start_ns) // (MAX_WINDOWS * shortest_ns)))
    measures = {gpu, FAR_MEMORY, *(measure for cause in CAUSES for measure in cause.measures)}
    windows: dict[Measure, Mapping[int, float]] = {}
    for measurement in sorted({measure.measurement for measure in measures}):
        by_job = {"job": (job.id,)}
        by_host = {APPLIANCE_TAG: (attempt.place_id,)}
        query = RangeQuery(
            measurement=measurement,
            fields=tuple(sorted(m.field for m in measures if m.measurement == measurement)),
            start_ns=start_ns // step_ns * step_ns,
            end_ns=-(-end_ns // step_ns) * step_ns,
            step_ns=step_ns,
            tenants=(job.tenant_id,),
            filters=by_job if measurement in _BY_JOB else by_host,
        )
        for series in store.query_range(query):
            values = dict(zip(series.times_ns, series.values, strict=True))
            windows[Measure(measurement, series.field)] = values
    return windows


def find_bottleneck(
    windows: Windows, gpu: Measure, *, cpus: float, host_cpus: int
) -> Bottleneck | None:
    """Return what the GPUs wait for; None if they don't, or if nothing shows why.

    Args:
        windows: from `measure_windows`.
        gpu: what says how busy its GPUs are, or its slice.
        cpus: that the job asked for.
        host_cpus: of the appliance; 0 if unknown.
    """
    use = windows.get(gpu, {})
    waiting = {at_ns for at_ns, percent in use.items() if percent < WAITING_BELOW_PERCENT}
    if len(use) < MIN_WINDOWS or not waiting:
        return None
    shares = [
        (len({at_ns for at_ns in waiting if _holds(cause, windows, at_ns, cpus=cpus)}), cause)
        for cause in CAUSES
    ]
    count, cause = max(shares, key=lambda share: share[0])
    share_ratio = count / len(use)
    if share_ratio < MIN_SHARE:
        return None
    percent = f"{100 * share_ratio:.0f} %"
    sentence = f"Input-bound: {percent} of the time the GPUs wait while {cause.text}"
    if cause.code == "cpu" and cpus:
        of_host = f" of {host_cpus}" if host_cpus else ""
        sentence += f" ({cpus:g}{of_host} cores asked for)"
    sentence += f". {cause.advice}{_far_memory(windows)}"
    return Bottleneck(
        cause.code, share_ratio, sentence, _evidence((gpu, *cause.measures), windows, waiting)
    )


def _holds(cause: Cause, windows: Windows, at_ns: int, *, cpus: float) -> bool:
    for measure, least in cause.measures.items():
        limit = 100 * cpus * least if measure == CPU else least
        if limit and windows.get(measure, {}).get(at_ns, 0.0) >= limit:
            return True
    return False


def _evidence(
    measures: Iterable[Measure], windows: Windows, waiting: Iterable[int]
) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(*measure, round(value, 1))
        for measure in measures
        if (value := _average(windows, measure, waiting)) is not None
    )


def _far_memory(windows: Windows) -> str:
    percent = _average(windows, FAR_MEMORY, windows.get(FAR_MEMORY, {}))
    if percent is None or percent < FAR_MEMORY_PERCENT:
        return ""
    return f" {percent:.0f} % of its memory is on another NUMA node than its GPUs."


def _average(windows: Windows, measure: Measure, times_ns: Iterable[int]) -> float | None:
    measured = windows.get(measure, {})
    values = [measured[at_ns] for at_ns in times_ns if at_ns in measured]
    return sum(values) / len(values) if values else None

"""A public trace of a real cluster, as a recording, and to compare policies by.

The files have the format of Alibaba's cluster-trace-gpu-v2023 ("openb"). In a recording, the pods
have no time limits, users or projects. A pod without an end ran until the trace ended.

The comparison, of how much of the cluster's GPUs each policy can allocate, is the experiment of
Weng and others (see `jobqueue.placement.fragmentation`): jobs are drawn from the trace at random,
with replacement, until their GPUs amount to 130 % of the cluster's. They arrive one by one, none
ends, and one that fits nowhere is refused. The code that places them is that of the queue:
`plan.Planner`. Of equally good nodes, the first by name is taken.
"""

import csv
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from core.errors import InvalidInputError
from jobqueue.placement.plan import Planner
from jobqueue.placement.plan_state import sized
from jobqueue.placement.views import ApplianceView, GPUView, JobShape, JobView, Snapshot
from jobqueue.simulation.recording import (
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    Recording,
    in_order,
)
from protocol.gpu_slices import WHOLE_GPU

_TIMES = ("creation_time", "deletion_time", "scheduled_time")
MIB = 1024**2
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MAX_GPUS = 1024
MAX_ERRORS = 20
# Any time will do: nothing ends.
_START = datetime(2023, 1, 1, tzinfo=UTC)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a policy with one random sequence of jobs.

    `allocated_ratio` is of all GPUs, `served_ratio` of those that were requested.
    """

    policy: str
    seed: int
    arrived: int
    refused: int
    allocated_ratio: float
    served_ratio: float


class _Pod(NamedTuple):
    shape: JobShape
    submitted: int
    started: int
    ended: int | None


def read_trace(nodes: Path, pods: Path) -> Recording:
    """Return a recording of a trace; pods that never started are left out.

    Raises:
        InvalidInputError: lists what is wrong, with line numbers.
    """
    appliances = [
        RecordedAppliance(
            name=node.name,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            gpus=tuple(RecordedGPU(model=gpu.model) for gpu in node.gpus),
        )
        for node in read_nodes(nodes)
    ]
    rows = [pod for pod in _read_rows(pods, (*_POD_COLUMNS, *_TIMES), _pod) if pod is not None]
    first = min((pod.submitted for pod in rows), default=0)
    last = max((pod.ended or pod.started for pod in rows), default=0)
    jobs = [
        RecordedJob(
            submitted_seconds=pod.submitted - first,
            run_seconds=max(0, (last if pod.ended is None else pod.ended) - pod.started),
            gpus=pod.shape.gpus,
            gpu_milli=pod.shape.gpu_milli or 1,
            gpu_models=tuple(sorted(pod.shape.gpu_models)),
            cpus=pod.shape.cpus,
            memory_bytes=pod.shape.memory_bytes,
        )
        for pod in rows
    ]
    return Recording(appliances=appliances, jobs=in_order(jobs))


def simulate(
    nodes: Sequence[ApplianceView],
    pods: Sequence[JobShape],
    *,
    policy: str,
    seed: int,
    demand_ratio: float = 1.3,
) -> Outcome:
    """Let jobs arrive until they have requested that ratio of all GPUs."""
    capacity = WHOLE_GPU * sum(len(node.gpus) for node in nodes)
    snapshot = Snapshot(
        now=_START,
        appliances=nodes,
        jobs=(),
        policy=policy,
        workload=[(shape, float(count)) for shape, count in Counter(pods).items()],
    )
    planner = Planner(snapshot)
    # The order of a seed is the same for every policy.
    drawn = random.Random(seed)  # noqa: S311 - an experiment
    arrived = allocated = requested = refused = 0
    while requested < demand_ratio * capacity:
        shape = drawn.choice(pods)
        size = shape.gpus * shape.gpu_milli
        fields = shape._asdict()
        # Traces have no partitions.
        del fields["queue"]
        request = fields.pop("slice")
        need = request and request.need
        job = JobView(
            id=str(arrived),
            name="",
            submitted_at=_START,
            user_id="trace",
            slice_need=need,
            **fields,
        )
        decision, _ = planner.start(sized(planner.ledger, job))
        arrived, requested = arrived + 1, requested + size
        allocated += size if decision else 0
        refused += decision is None
    return Outcome(
        policy=policy,
        seed=seed,
        arrived=arrived,
        refused=refused,
        allocated_ratio=allocated / capacity,
        served_ratio=allocated / requested,
    )


def check_trace(nodes: Sequence[ApplianceView], pods: Sequence[JobShape]) -> None:
    """Raise `InvalidInputError` if no GPU could ever be requested: the experiment has no end."""
    if not any(node.gpus for node in nodes):
        raise InvalidInputError("The nodes have no GPUs. Choose a file with GPU nodes.")
    if not any(pod.gpus for pod in pods):
        raise InvalidInputError("The pods request no GPUs. Choose a file with GPU pods.")


def read_nodes(path: Path) -> list[ApplianceView]:
    """Return the nodes of a trace.

    Raises:
        InvalidInputError: lists what is wrong, with line numbers.
    """
    return _read_rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model"), _node)


def read_pods(path: Path) -> list[JobShape]:
    """Return what the pods of a trace require, as `read_nodes` does."""
    return _read_rows(path, _POD_COLUMNS, _pod_shape)


def _pod(row: dict[str, str]) -> _Pod | None:
    if not row["scheduled_time"]:
        return None
    # Some times have a decimal point.
    times = {name: row[name].removesuffix(".0") for name in _TIMES}
    return _Pod(
        _pod_shape(row),
        _number_of(times, "creation_time"),
        _number_of(times, "scheduled_time"),
        _number_of(times, "deletion_time") if times["deletion_time"] else None,
    )


def _node(row: dict[str, str]) -> ApplianceView:
    return ApplianceView(
        id=row["sn"],
        name=row["sn"],
        executors=("trace",),
        cpus=_number_of(row, "cpu_milli") / 1000,
        memory_bytes=_number_of(row, "memory_mib") * MIB,
        gpus=[
            GPUView(f"{row['sn']}-{slot}", 0, model=row["model"] or "")
            for slot in range(_number_of(row, "gpu", maximum=MAX_GPUS))
        ],
    )


def _pod_shape(row: dict[str, str]) -> JobShape:
    """Return what a pod requires; raise `ValueError` for a wrong figure."""
    gpus = _number_of(row, "num_gpu", maximum=MAX_GPUS)
    return JobShape(
        gpus=gpus,
        gpu_milli=_number_of(row, "gpu_milli", maximum=WHOLE_GPU) if gpus == 1 else WHOLE_GPU,
        gpu_models=frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))),
        cpus=_number_of(row, "cpu_milli") / 1000,
        memory_bytes=_number_of(row, "memory_mib") * MIB,
    )


def _number_of(row: dict[str, str], name: str, *, maximum: int = 2**40) -> int:
    """Return a whole number of a row; raise `ValueError` if it is none."""
    try:
        value = int(row[name])
    except (TypeError, ValueError):
        value = -1
    if not 0 <= value <= maximum:
        raise ValueError(f"{name} is {row[name]!r}; enter a whole number from 0 to {maximum}")
    return value


def _read_rows(path: Path, columns: Sequence[str], parse: Callable[[dict[str, str]], T]) -> list[T]:
    """Return the parsed rows of a CSV file with these columns.

    Raises:
        InvalidInputError: lists what is wrong, with line numbers.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInputError(f"{path} lacks the columns {', '.join(missing)}.")
            errors: list[str] = []
            rows = list(_parsed(reader, parse, errors))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"Can't read {path}: {error}.") from error
    if errors:
        rest = len(errors) - MAX_ERRORS
        shown = errors[:MAX_ERRORS] + ([f"and {rest} more"] if rest > 0 else [])
        raise InvalidInputError(f"{path} has errors: {'; '.join(shown)}.")
    if not rows:
        raise InvalidInputError(f"{path} has no rows.")
    return rows


def _parsed(
    reader: "csv.DictReader[str]", parse: Callable[[dict[str, str]], T], errors: list[str]
) -> Iterator[T]:
    for row in reader:
        try:
            yield parse(row)
        except ValueError as error:
            errors.append(f"line {reader.line_num}: {error}")

"""A public trace as a recording: nodes and pods in the format of Alibaba's cluster-trace-gpu-v2023.

Its pods have no time limits, users or projects. A pod without an end ran until the trace ended.
"""

from pathlib import Path
from typing import NamedTuple

from jobqueue.placement.trace import POD_COLUMNS, number_of, pod_shape, read_nodes, read_rows
from jobqueue.placement.views import JobShape
from jobqueue.simulation.recording import (
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    Recording,
    in_order,
)

_TIMES = ("creation_time", "deletion_time", "scheduled_time")


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
    rows = [pod for pod in read_rows(pods, (*POD_COLUMNS, *_TIMES), _pod) if pod is not None]
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


def _pod(row: dict[str, str]) -> _Pod | None:
    if not row["scheduled_time"]:
        return None
    # Some times have a decimal point.
    times = {name: row[name].removesuffix(".0") for name in _TIMES}
    return _Pod(
        pod_shape(row),
        number_of(times, "creation_time"),
        number_of(times, "scheduled_time"),
        number_of(times, "deletion_time") if times["deletion_time"] else None,
    )

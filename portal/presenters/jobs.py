"""A job's progress steps, GPU names, log and resource usage (from the time series)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec

from core.clock import NS_PER_SECOND, to_ns
from core.quantities import unit_of
from core.spec import listed_facts, spec_fields
from jobqueue.jobs.gangs import gang_members
from jobqueue.logs.logs import MAX_LIMIT_BYTES, LogPage, read_log
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.partitions.measures import activity_of, memory_measurement, slice_of
from jobqueue.queue.resubmission import request_like
from jobqueue.queue.service import get_job
from jobqueue.states import JobState
from jobqueue.usage.efficiency import Efficiency, hardware_of, job_efficiency
from portal.context import current_scope, database, now, portal
from portal.presenters.market import money
from protocol.clusters import are_requested
from protocol.job_spec import HealthCheck, JobKind, JobRequest
from protocol.logs import Stream, log_lines, plain_log, whole_records
from protocol.notation import format_health_check
from tenants.fleet.appliances import read_inventory
from timeseries.store import RangeQuery, Series, Store

STEPS = (JobState.SUBMITTED, JobState.QUEUED, JobState.STARTING, JobState.RUNNING)
PIECE_BYTES = 65536
SEARCHED_BYTES = 1024 * 1024
LIVE_WINDOW = timedelta(minutes=10)
MAX_POINTS = 120
MIN_STEP_SECONDS = 2
CONTAINER_FIELDS = ("cpu_percent", "memory_bytes")
# Of what the finding of the efficiency report rests on.
EVIDENCE_LABELS = {
    "utilization_percent": "GPU utilization",
    "graphics_engine_active_percent": "Activity of the GPU slice",
    "cpu_percent": "CPU (100 % = 1 core)",
    "cpu_throttled_percent": "Held at its CPU limit",
    "cpu_pressure_percent": "Waits for a CPU",
    "io_pressure_percent": "Waits for a disk",
    "memory_pressure_percent": "Waits for memory",
    "steal_percent": "CPU taken from the host",
    "iowait_percent": "I/O wait of the host",
}
GPU_FIELDS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")


class Progress(StrEnum):
    """A step's progress."""

    DONE = "done"
    CURRENT = "current"
    AHEAD = "ahead"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job; `at` is when it was reached."""

    state: JobState
    progress: Progress
    at: datetime | None


def facts_of(job: Job) -> list[tuple[str, list[str]]]:
    """Return the label and lines of what a job asks for; its highest price with the currency."""
    request = request_like(job)
    price = Decimal(str(request.max_gpu_hour_price))
    label = spec_fields(JobRequest)["max_gpu_hour_price"].label
    return [
        (name, [money(price)] if name == label else lines) for name, lines in listed_facts(request)
    ]


def check_text(job: Job) -> str:
    """Return the health check of a service as users write it, or ""."""
    check = msgspec.convert(job.health_check, HealthCheck | None)
    return format_health_check(check) if check else ""


def stepper(job: Job, events: Sequence[JobEvent]) -> list[Step]:
    """Return a job's steps, up to its final state or the expected one."""
    reached: dict[JobState, datetime] = {}
    for event in events:
        reached.setdefault(event.state, event.at)
    expected = JobState.STOPPED if job.kind is JobKind.SERVICE else JobState.SUCCEEDED
    end = job.state if job.state.is_final or job.state is JobState.ASLEEP else expected
    steps = (*STEPS, end)
    current = steps.index(job.state)
    return [
        Step(state, _progress(index, current, state in reached), reached.get(state))
        for index, state in enumerate(steps)
    ]


def gpu_names(attempt: Attempt | None) -> list[str]:
    """Return the attempt's GPUs by model, such as `0, 1 (H100 80GB)`; unknown GPUs by UUID."""
    if attempt is None:
        return []
    if are_requested(attempt.gpu_uuids):
        count = len(attempt.gpu_uuids)
        return [f"{count} GPU{'' if count == 1 else 's'}, chosen by the cluster"]
    gpus = {gpu.uuid: gpu for gpu in read_inventory(attempt.node or attempt.appliance).gpus}
    indices: dict[str, list[int]] = {}
    for uuid in attempt.gpu_uuids:
        if uuid in gpus:
            indices.setdefault(gpus[uuid].model, []).append(gpus[uuid].index)
    names = [f"{', '.join(map(str, sorted(at)))} ({model})" for model, at in indices.items()]
    return names + [uuid for uuid in attempt.gpu_uuids if uuid not in gpus]


def log_page(
    job_id: str,
    *,
    offset: int,
    attempt_number: int | None = None,
    tail_bytes: int | None = None,
    search: str = "",
) -> dict[str, Any]:
    """Return complete lines of the log from `offset`; with `search`, of a larger part of it."""
    page = _log_part(
        job_id,
        offset=offset,
        limit=SEARCHED_BYTES if search else PIECE_BYTES,
        attempt_number=attempt_number,
        tail_bytes=tail_bytes,
    )
    data = page.data if page.is_complete else page.data[: whole_records(page.data)]
    return {
        "attempt_number": page.attempt_number,
        "offset": page.offset,
        "next_offset": page.offset + len(data),
        "text": plain_log(data).decode(errors="replace"),
        "lines": [line for line in log_lines(data) if search.casefold() in line.text.casefold()],
        "is_complete": page.is_complete,
    }


def raw_log(
    job_id: str,
    *,
    attempt_number: int | None = None,
    stream: Stream | None = None,
    with_times: bool = False,
) -> bytes:
    """Return the whole log as text; `max_log_bytes_per_job` limits its size."""
    pieces: list[bytes] = []
    offset = 0
    while page := _log_part(
        job_id, offset=offset, limit=MAX_LIMIT_BYTES, attempt_number=attempt_number
    ):
        if not page.data:
            break
        pieces.append(page.data)
        offset = page.next_offset
    return plain_log(b"".join(pieces), stream=stream, with_times=with_times)


def _log_part(job_id: str, **part: Any) -> LogPage:  # noqa: ANN401 - those of `read_log`
    """Return a part of the log; what is in a file is read after the transaction."""
    with database() as session:
        page = read_log(session, current_scope(), job_id, **part)
    return portal().log_files.filled(page)


def job_usage(
    store: Store, job: Job, *, tenants: tuple[str, ...] | None, now: datetime
) -> dict[str, Any]:
    """Return the last minutes of a running job, or the whole run of one that has ended.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    if job.started_at is None:
        return {"step_seconds": MIN_STEP_SECONDS, "series": []}
    start_at, end_at = _window(job.started_at, job.finished_at, now)
    span_seconds = (end_at - start_at).total_seconds()
    step_seconds = max(MIN_STEP_SECONDS, int(span_seconds / MAX_POINTS))

    def read(measurement: str, fields: tuple[str, ...], group_by: tuple[str, ...]) -> list[Series]:
        return store.query_range(
            RangeQuery(
                measurement=measurement,
                fields=fields,
                start_ns=to_ns(start_at),
                end_ns=to_ns(end_at),
                step_ns=step_seconds * NS_PER_SECOND,
                tenants=tenants,
                filters={"job": (job.id,)},
                group_by=group_by,
            )
        )

    own = slice_of(job.attempt.gpu_slice) if job.attempt else None
    activity = activity_of(own)
    of_slice = ("memory_used_bytes", *([activity[1]] if activity else []))
    fields = GPU_FIELDS if own is None else of_slice
    of_gpus = read(memory_measurement(own), fields, ("gpu",))
    series_list = [*read("attempt", CONTAINER_FIELDS, ()), *of_gpus]
    return {"step_seconds": step_seconds, "series": [_shaped(series) for series in series_list]}


def efficiency_of(job_id: str) -> Efficiency:
    """Return the efficiency report of a job.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    with database() as session:
        job = get_job(session, current_scope(), job_id)
        hardware, members = hardware_of(job), gang_members(session, job)
    return job_efficiency(portal().store, job, hardware=hardware, members=members, now=now())


def _progress(index: int, current: int, is_reached: bool) -> Progress:  # noqa: FBT001 - one caller
    if index == current:
        return Progress.CURRENT
    if index > current:
        return Progress.AHEAD
    return Progress.DONE if is_reached else Progress.SKIPPED


def _window(
    started_at: datetime, finished_at: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    end_at = (finished_at or now) + timedelta(seconds=MIN_STEP_SECONDS)
    start_at = started_at if finished_at else max(started_at, now - LIVE_WINDOW)
    return min(start_at, end_at), end_at


def _shaped(series: Series) -> dict[str, Any]:
    """Return a series; `gpu` is a GPU's index, empty for the container."""
    return {
        "field": series.field,
        "gpu": series.tags.get("gpu", ""),
        "unit": unit_of(series.field).symbol,
        "times_ms": [time_ns // 1_000_000 for time_ns in series.times_ns],
        "values": series.values,
    }

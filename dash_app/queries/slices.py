"""The slices of one GPU: their latest values, and their charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dash_app.charts import Chart, Line
from dash_app.queries.annotations import Thresholds
from dash_app.queries.gpu_rows import GPURow
from dash_app.queries.telemetry import Result, Telemetry, number
from jobqueue.partitions.allocations import Occupancy, Segment, SegmentKind
from jobqueue.partitions.measures import ACTIVITY, NOT_MEASURABLE
from protocol.gpu_slices import PartitionMode
from timeseries.store import Series

SLICE_PANELS = {"slice-memory": "Memory by slice", "slice-activity": "Activity by slice"}
# Slices come and go; the newest are drawn.
MAX_LINES = 16
_MEMORY = "memory_used_bytes"


@dataclass(frozen=True, slots=True)
class SliceUse:
    """A part of a GPU that a job has, or that waits for one, with its latest values.

    Attributes:
        segment: where it is, and whose.
        memory_bytes: in use; None if it is unknown.
        activity_percent: of its multiprocessors; None where the driver can't tell.
        processes: how many run on it; None if it is unknown.
    """

    segment: Segment
    memory_bytes: float | None
    activity_percent: float | None
    processes: int | None


def slice_uses(telemetry: Telemetry, gpu: GPURow) -> tuple[SliceUse, ...]:
    """Return the slices of a GPU in the order of their slots; none of a whole GPU."""
    if gpu.occupancy is None:
        return ()
    is_mig = gpu.occupancy.mode is PartitionMode.MIG
    tag = "uuid" if is_mig else "job"
    processes = telemetry.latest("gpu_process", ("processes", _MEMORY), group_by=(tag, "owner"))
    measured = processes
    if is_mig:
        measured = telemetry.latest("gpu_slice", (_MEMORY, ACTIVITY), group_by=("uuid",))

    def use(segment: Segment) -> SliceUse:
        key = segment.uuid if is_mig else segment.job_id
        own = next((row.values for row in measured if key and row.tags.get(tag) == key), {})
        counts = [
            number(row.values, "processes") for row in processes if key and row.tags.get(tag) == key
        ]
        return SliceUse(
            segment=segment,
            memory_bytes=number(own, _MEMORY),
            activity_percent=number(own, ACTIVITY),
            processes=int(sum(count or 0 for count in counts)) if counts else None,
        )

    return tuple(
        use(segment)
        for segment in gpu.occupancy.segments
        if segment.kind in {SegmentKind.JOB, SegmentKind.IDLE}
    )


def slice_charts(
    telemetry: Telemetry, gpu: GPURow, names: Mapping[str, str], thresholds: Thresholds
) -> dict[str, Chart]:
    """Return the charts of a GPU by slice, or by job where jobs share it otherwise.

    Args:
        telemetry: filtered to the GPU.
        gpu: the GPU; of a whole one the charts are empty.
        names: of jobs by id.
        thresholds: of alert rules.
    """
    occupancy = gpu.occupancy
    if occupancy is None:
        return {key: Chart(field=_MEMORY, lines=()) for key in SLICE_PANELS}
    if occupancy.mode is not PartitionMode.MIG:
        jobs = replace(telemetry, filters={**telemetry.filters, "owner": ("job",)})
        result = jobs.charted("gpu_process", (_MEMORY,), group_by=("job",))
        labels = {**names, **{job.id: job.name for job in gpu.sharing.values()}}
        reason = f"Not measurable: {NOT_MEASURABLE[occupancy.mode]}"
        return {
            "slice-memory": _chart(result, _MEMORY, "job", labels),
            "slice-activity": Chart(field=ACTIVITY, lines=(), problem=reason),
        }
    result = telemetry.charted("gpu_slice", (_MEMORY, ACTIVITY), group_by=("uuid", "profile"))
    labels = _instance_labels(occupancy)
    activity = _chart(result, ACTIVITY, "uuid", labels)
    if not activity.lines and not activity.problem:
        reason = f"Not measurable: {NOT_MEASURABLE[PartitionMode.MIG]}"
        activity = replace(activity, problem=reason)
    return {
        "slice-memory": thresholds.on(
            _chart(result, _MEMORY, "uuid", labels), "gpu_slice", _MEMORY
        ),
        "slice-activity": thresholds.on(activity, "gpu_slice", ACTIVITY),
    }


def _instance_labels(occupancy: Occupancy) -> dict[str, str]:
    return {
        segment.uuid: f"{segment.profile} at slot {segment.start}"
        for segment in occupancy.segments
        if segment.uuid
    }


def _chart(result: Result, field: str, tag: str, labels: Mapping[str, str]) -> Chart:
    """Return a line for each slice, with the same color in every chart."""
    keys = list(dict.fromkeys(series.tags.get(tag, "") for series in result.series))
    lines = [
        result.line(series, name=_label(series, tag, labels), color=keys.index(series.tags[tag]))
        for series in _newest(result.of(field))
        if series.tags.get(tag)
    ]
    return Chart(field=field, lines=tuple(_by_name(lines)), problem=result.problem)


def _newest(series: Sequence[Series]) -> Sequence[Series]:
    return sorted(series, key=lambda item: -max(item.times_ns, default=0))[:MAX_LINES]


def _by_name(lines: Sequence[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line.name)


def _label(series: Series, tag: str, labels: Mapping[str, str]) -> str:
    key = series.tags[tag]
    return labels.get(key) or f"{series.tags.get('profile', '')} {key[:12]}".strip()

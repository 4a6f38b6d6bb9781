"""A GPU that jobs share, as a bar of its slots: who has what, and what is free."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from core.quantities import format_size
from dash_app.components import ABSENT, labeled, percent_text, plain, table, value_text
from dash_app.job_links import job_link
from dash_app.queries.gpu_rows import GPURow
from dash_app.queries.slices import SliceUse
from dash_app.routes import job_path
from jobqueue.partitions.allocations import Occupancy, Segment, SegmentKind
from jobqueue.partitions.measures import NOT_MEASURABLE
from jobqueue.partitions.texts import content_text, place_text, slots_text
from jobqueue.rentals import ListedJob, RentedJob, owner_text
from protocol.gpu_slices import PartitionMode


def slot_bar(gpu: GPURow, search: str, *, is_large: bool = False) -> Any:  # noqa: ANN401 - Dash's
    """Return the bar of a GPU that jobs share; segments of jobs link to them."""
    occupancy = gpu.occupancy
    if occupancy is None or not occupancy.segments:
        return html.Span("no slots reported yet", className="vdd-muted")
    segments = [_segment(segment, occupancy, gpu.sharing, search) for segment in occupancy.segments]
    title = f"Slots of GPU {gpu.index}, {slots_text(occupancy)}"
    name = f"vdd-slots{' is-large' if is_large else ''}"
    return plain(html.Div, segments, className=name, role="group", **labeled(title))


def slice_list(gpu: GPURow, slices: Sequence[SliceUse], search: str) -> list[Any]:
    """Return who has what of a GPU that jobs share, as a bar and a table."""
    occupancy = gpu.occupancy
    if occupancy is None:
        return []
    reason = NOT_MEASURABLE[occupancy.mode]
    unmeasured = html.Span("not measurable", title=f"{reason[0].upper()}{reason[1:]}.")
    rows = [
        [
            place_text(use.segment, occupancy),
            *([use.segment.profile] if occupancy.mode is PartitionMode.MIG else []),
            *_holder(use.segment, gpu.sharing, search),
            _memory(use),
            unmeasured if use.activity_percent is None else percent_text(use.activity_percent),
            ABSENT if use.processes is None else str(use.processes),
        ]
        for use in slices
    ]
    profile = ["Profile"] if occupancy.mode is PartitionMode.MIG else []
    headings = ("Place", *profile, "Job", "User", "Memory", "Activity", "Processes")
    empty = "No slice is in use. Jobs that ask for a part of a GPU get one here."
    return [slot_bar(gpu, search, is_large=True), table(headings, rows, empty=empty)]


def _holder(segment: Segment, jobs: Mapping[str, ListedJob], search: str) -> tuple[Any, str]:
    """Return the job on a segment, and its user."""
    job = jobs.get(segment.job_id)
    if job is None:
        return html.Span("idle", className="vdd-muted"), ABSENT
    return job_link(job, search), owner_text(job)


def _memory(use: SliceUse) -> str:
    used, limit = value_text("_bytes", use.memory_bytes), use.segment.memory_bytes
    return f"{used} of {format_size(limit)}" if limit else used


def _segment(
    segment: Segment, occupancy: Occupancy, jobs: Mapping[str, ListedJob], search: str
) -> Any:  # noqa: ANN401 - a Dash component
    text = content_text(segment, jobs)
    job = jobs.get(segment.job_id)
    owner = f"of {owner_text(job)}" if job else ""
    content = f"job {text} {owner}".strip() if job else text
    if segment.kind is SegmentKind.UNUSABLE:
        content = "no MIG profile fits here beside what is there"
    place = ", ".join(filter(None, (segment.profile, place_text(segment, occupancy))))
    properties = {
        "className": f"vdd-slot is-{segment.kind.value}",
        "style": {"flexGrow": segment.slots},
        "title": f"{place}: {content}",
    }
    if job is None:
        return plain(html.Span, text, **properties)
    if isinstance(job, RentedJob):
        return plain(html.Span, text, **properties)
    return plain(dcc.Link, text, href=f"{job_path(job.id)}{search}", **properties)

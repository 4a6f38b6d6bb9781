"""An appliance's GPU processes and topology, as the agent reported them last."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dash import dcc, html

from core.quantities import format_value
from dash_app import components
from dash_app.components import badge
from dash_app.pcie import pcie_link
from dash_app.queries.gpu_rows import GPURow
from dash_app.routes import gpu_path, job_path
from jobqueue.rentals import RENTED_JOB
from protocol.gpu_processes import GPUProcess
from protocol.inventory import Inventory
from tenants.fleet.appliances import read_gpu_processes
from tenants.models import Appliance

_SLICE_PREFIX = "MIG-"
_LEGEND = (
    "NV#: that many NVLinks. PIX, PXB: one or several PCIe switches. PHB: PCIe host bridge. "
    "NODE: same NUMA node. SYS: across sockets."
)


def process_table(
    processes: Sequence[GPUProcess] | None,
    names: Mapping[str, str],
    *,
    appliance_id: str,
    search: str,
) -> Any:  # noqa: ANN401 - a Dash component
    """Return the processes on the GPUs, with their job; others stand out.

    `names` are those of jobs by id, and the profiles of MIG slices by UUID.
    """
    if processes is None:
        return html.P("Unknown: the appliance is offline, or its agent reports no GPU processes.")
    rows = [
        [
            dcc.Link(
                _place(process, names),
                href=f"{gpu_path(appliance_id, str(process.gpu))}{search}",
                title=process.uuid,
            ),
            str(process.pid),
            process.name or html.Span("hidden", className="vdd-muted"),
            _owner(process, names, search),
            format_value("_bytes", process.memory_bytes)
            if process.memory_bytes
            else components.ABSENT,
        ]
        for process in processes
    ]
    headings = ("GPU", "PID", "Process", "Used by", "Memory")
    return components.table(headings, rows, empty="No process uses a GPU.")


def _place(process: GPUProcess, names: Mapping[str, str]) -> str:
    """Return the GPU of a process, such as `GPU 3`, with the profile of its MIG slice."""
    is_slice = process.uuid.startswith(_SLICE_PREFIX)
    profile = f", {names.get(process.uuid, 'MIG')}" if is_slice else ""
    return f"GPU {process.gpu}{profile}"


def names_on(gpus: Iterable[GPURow]) -> dict[str, str]:
    """Return the names of the jobs and slices of GPUs, for `process_table`."""
    names: dict[str, str] = {}
    for gpu in gpus:
        segments = gpu.occupancy.segments if gpu.occupancy else ()
        names |= {segment.uuid: segment.profile for segment in segments if segment.uuid}
        names |= {job.id: job.name for job in gpu.jobs}
    return names


def processes_on(
    appliance: Appliance, *, gpu: str = "", job_id: str = ""
) -> list[GPUProcess] | None:
    """Return the processes on a GPU, or those of a job; None if they are unknown."""
    processes = read_gpu_processes(appliance)
    if processes is None:
        return None
    return [
        process
        for process in processes
        if (not gpu or str(process.gpu) == gpu) and (not job_id or process.job == job_id)
    ]


def _owner(process: GPUProcess, names: Mapping[str, str], search: str) -> Any:  # noqa: ANN401 - Dash's
    if names.get(process.job) == RENTED_JOB:
        return RENTED_JOB
    if process.job:
        return dcc.Link(
            names.get(process.job, process.job[:8]), href=f"{job_path(process.job)}{search}"
        )
    place = f"container {process.container}" if process.container else process.owner
    return [place, badge("outside of jobs", tone="warning")] if process.owner != "job" else "job"


def topology(inventory: Inventory) -> Any:  # noqa: ANN401 - a Dash component
    """Return the matrix of `nvidia-smi topo -m`, with the PCIe link of each GPU."""
    kinds = {}
    for path in inventory.gpu_paths:
        kinds[path.first_index, path.second_index] = path.kind
        kinds[path.second_index, path.first_index] = path.kind
    if not kinds:
        return html.P("Unknown: the driver reports no paths between GPUs.")
    indices = sorted({index for pair in kinds for index in pair})
    gpus = {gpu.index: gpu for gpu in inventory.gpus}
    rows = [
        [
            html.Strong(str(row)),
            *(
                "X" if row == column else kinds.get((row, column), components.ABSENT)
                for column in indices
            ),
            (pcie_link(gpus[row]) if row in gpus else "") or components.ABSENT,
        ]
        for row in indices
    ]
    headings = ("GPU", *map(str, indices), "PCIe")
    return [
        components.table(headings, rows, empty=""),
        html.P(_LEGEND, className="vdd-muted"),
    ]

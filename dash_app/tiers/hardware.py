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
from protocol.gpu_processes import GPUProcess
from protocol.inventory import Inventory

_LEGEND = (
    "NV#: that many NVLinks. PIX, PXB: one or several PCIe switches. PHB: PCIe host bridge. "
    "NODE: same NUMA node. SYS: across sockets."
)


def process_table(
    processes: Sequence[GPUProcess] | None,
    gpus: Iterable[GPURow],
    *,
    appliance_id: str,
    search: str,
) -> Any:  # noqa: ANN401 - a Dash component
    """Return the processes on the GPUs, with their job; others stand out."""
    if processes is None:
        return html.P("Unknown: the appliance is offline, or its agent reports no GPU processes.")
    uuids, names = set(), {}
    for gpu in gpus:
        uuids.add(gpu.uuid)
        if gpu.job is not None:
            names[gpu.job.id] = gpu.job.name
    rows = [
        [
            [
                dcc.Link(
                    f"GPU {process.gpu}", href=f"{gpu_path(appliance_id, str(process.gpu))}{search}"
                ),
                None if process.uuid in uuids else html.Span(badge("MIG"), title=process.uuid),
            ],
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


def _owner(process: GPUProcess, names: Mapping[str, str], search: str) -> Any:  # noqa: ANN401 - Dash's
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

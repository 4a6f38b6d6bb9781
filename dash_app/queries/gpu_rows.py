"""The GPUs of appliances, as their agents report them, with their latest values and jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from dash_app.queries.telemetry import Values, by_index, number
from jobqueue.partitions.allocations import GPUAllocations, GPUSite, Occupancy, SegmentKind
from jobqueue.rentals import ListedJob
from protocol.clusters import ClusterReport, NodeState
from protocol.gpu_slices import PartitionMode
from protocol.health import ApplianceHealth, GPUHealth, HealthState
from protocol.inventory import GPUInfo, Inventory
from tenants.fleet.appliances import ReportCache, read_health, read_inventory
from tenants.fleet.clusters import TITLES
from tenants.models import Appliance
from timeseries.store import Latest

BUSY_PERCENT = 5.0
_NOT_UNDER_MIG = frozenset({"utilization_percent", "memory_utilization_percent"})
_NONE = Latest({}, 0, {})


@dataclass(slots=True)
class GPURow:
    """One GPU of an appliance with its latest values; a GPU with a job is *allocated*.

    Attributes:
        job: that has the GPU for itself.
        occupancy: who has what of it, if jobs share it.
        sharing: the jobs that share it, by id.
    """

    index: str
    uuid: str
    model: str
    values: Values
    job: ListedJob | None
    health: GPUHealth | None = None
    occupancy: Occupancy | None = None
    sharing: Mapping[str, ListedJob] = field(default_factory=dict)

    @property
    def state(self) -> HealthState | None:
        """The GPU's health; None if unknown."""
        return self.health.state if self.health else None

    @property
    def jobs(self) -> list[ListedJob]:
        """The jobs that have it, or parts of it."""
        return [self.job] if self.job else list(self.sharing.values())

    @property
    def allocated(self) -> float:
        """The share of it that jobs have, from 0 to 1."""
        if self.occupancy is None:
            return float(self.job is not None)
        return self.occupancy.slots_with(SegmentKind.JOB) / max(1, self.occupancy.slots)

    @property
    def is_busy(self) -> bool:
        """Return whether kernels run on it, for a job or anything else."""
        return (self.number("utilization_percent") or 0.0) >= BUSY_PERCENT

    @property
    def is_out_of_service(self) -> bool:
        """Return whether it failed, so that it gets no jobs."""
        return self.state is HealthState.FAILED

    def number(self, name: str) -> float | None:
        """Return the latest value of a field, or None."""
        return number(self.values, name)


def numbers(gpus: Iterable[GPURow], name: str) -> list[float]:
    """Return the latest values of a field, of the GPUs that have one."""
    values = (gpu.values.get(name) for gpu in gpus)
    return [float(value) for value in values if value is not None and not isinstance(value, str)]


class ClusterFigures(NamedTuple):
    """What a connector reported of its cluster; `allocated_gpus` are those of all its users.

    `models` are all GPUs by model, those that are allocated, and those of nodes that are down.
    """

    title: str
    nodes: int
    nodes_up: int
    gpus: int
    allocated_gpus: int
    waiting_jobs: int
    problem: str
    models: Mapping[str, tuple[int, int, int]]


class Report(NamedTuple):
    """The part of an appliance's report that dashboards need; GPUs are (UUID, model) by index.

    `mig_gpus` are those in MIG mode by UUID, `modes` how the agent can share GPUs.
    """

    health: ApplianceHealth | None
    gpu_healths: Mapping[str, GPUHealth]
    gpus: Mapping[str, tuple[str, str]]
    mig_gpus: Mapping[str, GPUInfo]
    modes: Sequence[str]
    cluster: ClusterFigures | None = None


def report_of(appliance: Appliance) -> Report:
    """Return the report of an appliance that was read with it."""
    return _report(read_inventory(appliance), read_health(appliance))


def site_of(appliance: Appliance) -> GPUSite:
    """Return what decides how the GPUs of an appliance are shared."""
    modes = read_inventory(appliance).partition_modes
    return GPUSite(appliance.tenant_id, appliance.labels, modes)


def gpu_rows(
    report: Report, latest: Sequence[Latest], allocations: GPUAllocations, site: GPUSite
) -> tuple[GPURow, ...]:
    """Return the GPUs that are in the report, or that have values."""
    rows = {row.tags.get("gpu", ""): row for row in latest}
    gpus = report.gpus
    if not gpus.keys() >= rows.keys():
        indexes = sorted(gpus.keys() | rows.keys(), key=by_index)
        gpus = {index: gpus.get(index, ("", "")) for index in indexes}
    result = []
    for index, (reported_uuid, model) in gpus.items():
        row = rows.get(index, _NONE)
        uuid = reported_uuid or row.tags.get("uuid", "")
        model_name = model or row.tags.get("model", "")
        gpu = report.mig_gpus.get(uuid) or GPUInfo(
            index=-1, uuid=uuid, model=model_name, memory_bytes=0
        )
        occupancy = allocations.occupancy(gpu, site)
        values = row.values
        if occupancy and occupancy.mode is PartitionMode.MIG:
            # What is left of the time before the mode was on.
            values = {name: value for name, value in values.items() if name not in _NOT_UNDER_MIG}
        result.append(
            GPURow(
                index=index,
                uuid=uuid,
                model=model_name,
                values=values,
                job=None if occupancy else allocations.job_of(uuid),
                health=report.gpu_healths.get(uuid),
                occupancy=occupancy,
                sharing=allocations.jobs_on(occupancy),
            )
        )
    return tuple(result)


def _report(inventory: Inventory, health: ApplianceHealth | None) -> Report:
    healths = {gpu.uuid: gpu for gpu in health.gpus} if health else {}
    # A missing GPU is in the health report only.
    gpus = {str(gpu.index): (gpu.uuid, "") for gpu in healths.values() if gpu.index >= 0}
    gpus |= {str(gpu.index): (gpu.uuid, gpu.model) for gpu in inventory.gpus}
    return Report(
        health=health,
        gpu_healths=healths,
        gpus={index: gpus[index] for index in sorted(gpus, key=by_index)},
        mig_gpus={gpu.uuid: gpu for gpu in inventory.gpus if gpu.is_mig_enabled},
        modes=inventory.partition_modes,
        cluster=_figures(inventory.cluster),
    )


def _figures(report: ClusterReport | None) -> ClusterFigures | None:
    if report is None:
        return None
    models: dict[str, tuple[int, int, int]] = {}
    for node in report.nodes:
        total, allocated, down = models.get(node.gpu_model, (0, 0, 0))
        is_down = node.state is NodeState.DOWN
        models[node.gpu_model] = (
            total + node.gpus,
            allocated + (0 if is_down else min(node.allocated_gpus, node.gpus)),
            down + (node.gpus if is_down else 0),
        )
    return ClusterFigures(
        models={name: counts for name, counts in models.items() if counts[0]},
        title=TITLES[report.kind],
        nodes=len(report.nodes),
        nodes_up=sum(node.state is NodeState.UP for node in report.nodes),
        gpus=sum(node.gpus for node in report.nodes),
        allocated_gpus=sum(node.allocated_gpus for node in report.nodes),
        waiting_jobs=report.waiting_jobs,
        problem=report.problem,
    )


def _parse(inventory: str, health: str | None) -> Report:
    """Return a stored report; of an invalid part nothing is known."""
    try:
        hardware = msgspec.json.decode(inventory, type=Inventory)
    except msgspec.ValidationError:
        hardware = Inventory(hostname="")
    try:
        state = msgspec.json.decode(health or "null", type=ApplianceHealth | None)
    except msgspec.ValidationError:
        state = None
    return _report(hardware, state)


REPORTS = ReportCache(_parse)

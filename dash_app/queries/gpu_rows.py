"""The GPUs of appliances, as their agents report them, with their latest values and jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dash_app.queries.telemetry import Values, by_index, number
from jobqueue.models import Job
from protocol.health import ApplianceHealth, GPUHealth, HealthState
from protocol.inventory import Inventory
from tenants.fleet.appliances import read_health, read_inventory
from tenants.fleet.reports import ReportCache
from tenants.models import Appliance
from timeseries.store import Latest

BUSY_PERCENT = 5.0
_NONE = Latest({}, 0, {})


@dataclass(slots=True)
class GPURow:
    """One GPU of an appliance with its latest values; a GPU with a job is *allocated*."""

    index: str
    uuid: str
    model: str
    values: Values
    job: Job | None
    health: GPUHealth | None = None

    @property
    def state(self) -> HealthState | None:
        """The GPU's health; None if unknown."""
        return self.health.state if self.health else None

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


class Report(NamedTuple):
    """The part of an appliance's report that dashboards need; GPUs are (UUID, model) by index."""

    health: ApplianceHealth | None
    gpu_healths: Mapping[str, GPUHealth]
    gpus: Mapping[str, tuple[str, str]]


def report_of(appliance: Appliance) -> Report:
    """Return the report of an appliance that was read with it."""
    return _report(read_inventory(appliance), read_health(appliance))


def gpu_rows(
    report: Report, latest: Sequence[Latest], jobs: Mapping[str, Job]
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
        health = report.gpu_healths.get(uuid)
        result.append(GPURow(index, uuid, model_name, row.values, jobs.get(uuid), health))
    return tuple(result)


def _report(inventory: Inventory, health: ApplianceHealth | None) -> Report:
    healths = {gpu.uuid: gpu for gpu in health.gpus} if health else {}
    # A missing GPU is in the health report only.
    gpus = {str(gpu.index): (gpu.uuid, "") for gpu in healths.values() if gpu.index >= 0}
    gpus |= {str(gpu.index): (gpu.uuid, gpu.model) for gpu in inventory.gpus}
    return Report(health, healths, {index: gpus[index] for index in sorted(gpus, key=by_index)})


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

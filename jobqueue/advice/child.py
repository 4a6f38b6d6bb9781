"""The process that computes the figures of one tenant: `python -m jobqueue.advice.child`."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime

import numpy as np
from sqlalchemy.orm import Session

from core.db import create_database_engine
from jobqueue.advice.additions import add_replays
from jobqueue.advice.capacity import OwnAppliance, own_appliances
from jobqueue.advice.demand import UsedHour, Wait, used_elsewhere, used_on, waits
from jobqueue.advice.figures import ApplianceFigures, FleetFigures, ModelFigures, hour_edges
from jobqueue.simulation.bounded import BoundedTask, Report, run_task
from jobqueue.simulation.results import means
from jobqueue.usage.ledger import HOUR, floor_hour, recorded_until
from jobqueue.usage.measuring import Period

# Others have the least capacity and demand.
MAX_MODELS = 20
MAX_APPLIANCES = 2000
# The part of the work before the replays.
_READ_RATIO = 0.1
_DECIMALS = 4


class Task(BoundedTask, kw_only=True):
    """Whose figures to compute."""


def compute(task: Task, report: Report) -> FleetFigures:
    """Return the figures of a task's period, with replays."""
    engine = create_database_engine(task.database_url, answer_seconds=None)
    with Session(engine) as session:
        period = whole_hours(session, task.tenant_id, Period(task.since, task.until))
        figures = fleet_figures(session, task.tenant_id, period)
        report(_READ_RATIO)
        add_replays(
            session,
            task.tenant_id,
            figures,
            report=lambda part: report(_READ_RATIO + (1 - _READ_RATIO) * part),
            now=task.now,
        )
    engine.dispose()
    return figures


def whole_hours(session: Session, tenant_id: str, period: Period) -> Period:
    """Return the hours of a period that are in the ledger, from the tenant's first GPUs on."""
    until = floor_hour(min(period.until, recorded_until(session) or period.until))
    own = own_appliances(session, tenant_id, Period(period.since, until)).values()
    begun = [span.since for appliance in own for span, _ in appliance.spans]
    since = floor_hour(max(period.since, min(begun, default=until)) + HOUR - HOUR.resolution)
    return Period(min(since, until), until)


def fleet_figures(session: Session, tenant_id: str, period: Period) -> FleetFigures:
    """Return the figures of a period of whole hours, without replays."""
    own = own_appliances(session, tenant_id, period)
    table = _Table(period)
    for appliance in own.values():
        table.add_appliance(appliance)
    for is_rented_out in (False, True):
        used = used_on(session, tenant_id, period, is_rented_out=is_rented_out)
        table.add_used(used)
    table.add_rented(used_elsewhere(session, tenant_id, period))
    fleet = sum((appliance.gpus for appliance in own.values()), Counter[str]())
    table.add_waits(waits(session, tenant_id, period, fleet))
    return table.figures(own)


class _Table:
    """Sums by GPU model and hour, and by appliance."""

    def __init__(self, period: Period) -> None:
        self._period = period
        self._edges = hour_edges(period.since, period.until)
        hours = len(self._edges) - 1
        self._arrays: dict[str, dict[str, np.ndarray]] = {
            name: defaultdict(lambda: np.zeros(hours))
            for name in ("capacity", "allocated", "idle", "rented", "waiting")
        }
        self._spans: dict[str, dict[str, list[tuple[float, float, float]]]] = {
            "capacity": defaultdict(list),
            "waiting": defaultdict(list),
        }
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._of_appliance: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, -1.0])

    def add_appliance(self, appliance: OwnAppliance) -> None:
        """Add the capacity of an appliance."""
        for span, gpus in appliance.spans:
            for model, count in gpus.items():
                self._add_span("capacity", model, span.since, span.until, count)

    def add_used(self, rows: Iterable[UsedHour]) -> None:
        """Add what was used of own appliances."""
        for row in rows:
            self._arrays["allocated"][row.gpu_model][row.hour] += row.allocated
            self._arrays["idle"][row.gpu_model][row.hour] += row.idle
            sums = self._of_appliance[row.appliance_id]
            sums[0] += row.allocated
            sums[1] += row.idle
            if row.allocated > 0:
                sums[2] = max(sums[2], row.hour)

    def add_rented(self, rows: Iterable[UsedHour]) -> None:
        """Add what was used of other tenants' appliances."""
        for row in rows:
            self._arrays["rented"][row.gpu_model][row.hour] += row.allocated

    def add_waits(self, listed: Iterable[Wait]) -> None:
        """Add what jobs waited for."""
        for wait in listed:
            for model, gpus in wait.gpus.items():
                self._add_span("waiting", model, wait.since, wait.until, gpus)
                if wait.seconds is not None:
                    self._waits[model].append(wait.seconds)

    def figures(self, own: dict[str, OwnAppliance]) -> FleetFigures:
        """Return the sums as figures."""
        for name, by_model in self._spans.items():
            for model, spans in by_model.items():
                begins, ends, gpus = np.array(spans).T
                # Means of an hour are GPU-hours.
                self._arrays[name][model] += means(begins, ends, gpus, self._edges)
        names = {model for by_model in self._arrays.values() for model in by_model}
        models = [self._model(name, own) for name in names]
        models.sort(key=lambda row: (-sum(row.capacity) - sum(row.waiting), row.gpu_model))
        appliances = [self._appliance(appliance) for appliance in own.values()]
        appliances.sort(
            key=lambda row: (row.allocated_gpu_hours - row.capacity_gpu_hours, row.name)
        )
        return FleetFigures(
            since=self._period.since,
            until=self._period.until,
            models=models[:MAX_MODELS],
            appliances=appliances[:MAX_APPLIANCES],
        )

    def _add_span(
        self, name: str, model: str, since: datetime, until: datetime, gpus: float
    ) -> None:
        start = self._period.since
        span = (since - start).total_seconds(), (until - start).total_seconds(), float(gpus)
        self._spans[name][model].append(span)

    def _model(self, model: str, own: dict[str, OwnAppliance]) -> ModelFigures:
        waited = self._waits.get(model, [])
        p50, p95 = np.percentile(waited, (50, 95)).round(1).tolist() if waited else (None, None)
        having = [appliance.gpus[model] for appliance in own.values() if appliance.gpus[model]]
        arrays = {
            # Sums of spans may end a little below 0.
            name: np.maximum(by_model[model], 0.0).round(_DECIMALS).tolist()
            for name, by_model in self._arrays.items()
        }
        return ModelFigures(
            gpu_model=model,
            gpus=sum(having),
            appliances=len(having),
            jobs=len(waited),
            wait_seconds_p50=p50,
            wait_seconds_p95=p95,
            **arrays,
        )

    def _appliance(self, appliance: OwnAppliance) -> ApplianceFigures:
        allocated, idle, last_hour = self._of_appliance[appliance.id]
        seconds = sum(
            (span.until - span.since).total_seconds() * gpus.total()
            for span, gpus in appliance.spans
        )
        return ApplianceFigures(
            id=appliance.id,
            name=appliance.name,
            gpu_model=appliance.gpu_model,
            gpus=appliance.gpus.total(),
            capacity_gpu_hours=round(seconds / HOUR.total_seconds(), 3),
            allocated_gpu_hours=round(allocated, 3),
            idle_gpu_hours=round(idle, 3),
            last_used_at=None
            if last_hour < 0
            else self._period.since + (int(last_hour) + 1) * HOUR,
        )


if __name__ == "__main__":
    run_task(Task, compute, name="computation")

"""Computes the figures of tenants, one after another, each in a process of its own.

Each tenant with GPUs has them computed every night, and when an admin asks. The scheduler calls
`step` often; it never waits for the process. What ran when the scheduler was restarted is computed
again within an hour.
"""

from datetime import datetime, timedelta

import msgspec
from sqlalchemy import and_, or_, select, update
from sqlalchemy.orm import Session

from core.db import SessionFactory, changed_one, transaction
from jobqueue.advice.child import Task
from jobqueue.advice.figures import FleetFigures
from jobqueue.advice.models import FleetAdvice
from jobqueue.simulation.bounded import BoundedProcess
from jobqueue.simulation.models import UNFINISHED, SimulationState
from jobqueue.usage.ledger import recorded_until
from tenants.fleet.states import in_service
from tenants.models import Appliance, Tenant, TenantState

MAX_DURATION = timedelta(minutes=30)
MAX_MEMORY_BYTES = 2 * 1024**3
NIGHT_HOUR = 2
AGAIN_AFTER = timedelta(hours=1)
# Of the usage ledger: after a longer stop it records the hours since then, some at a time.
MAX_LAG = timedelta(hours=3)
_MODULE = "jobqueue.advice.child"
_S = SimulationState


class AdviceRunner:
    """The process that computes figures, if there is one.

    Args:
        sessions: of the database.
        database_url: of the database, for the process.
        weeks: the length of the period.
        max_duration: after which a computation fails.
        max_memory_bytes: of the process.
    """

    def __init__(
        self,
        sessions: SessionFactory,
        database_url: str,
        *,
        weeks: int,
        max_duration: timedelta = MAX_DURATION,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._sessions = sessions
        self._database_url = database_url
        self._period = timedelta(weeks=weeks)
        self._max_duration = max_duration
        self._max_memory_bytes = max_memory_bytes
        self.run: BoundedProcess | None = None

    def step(self, now: datetime) -> None:
        """Store how far the computation is, end it when it is over, and start the next."""
        with transaction(self._sessions) as session:
            statement = select(FleetAdvice.tenant_id, FleetAdvice.state)
            waiting = statement.where(FleetAdvice.state.in_(UNFINISHED))
            ordered = waiting.order_by(FleetAdvice.requested_at, FleetAdvice.tenant_id)
            rows = session.execute(ordered).all()
        running = {row.tenant_id for row in rows if row.state is _S.RUNNING}
        if self.run is not None and self.run.tenant_id not in running:
            # The tenant was removed, or another scheduler took over meanwhile.
            self.close()
        for tenant_id in running - {self.run.tenant_id if self.run else ""}:
            message = "The portal was restarted while it ran. It runs again within an hour."
            self._finish(tenant_id, _S.INTERRUPTED, message, now=now)
        if self.run is not None:
            self._follow(self.run, now)
        if self.run is None:
            for row in rows:
                if row.state is _S.WAITING and self._start(row.tenant_id, now):
                    return

    def close(self) -> None:
        """End the process."""
        if self.run is not None:
            self.run.stop()
            self.run = None

    def _follow(self, run: BoundedProcess, now: datetime) -> None:
        outcome = run.follow(
            now,
            lambda percent: self._update(run.tenant_id, progress_percent=percent),
            if_killed="It was stopped: it needed more memory or processor time than it may use.",
        )
        if outcome is None:
            return
        self.run = None
        if outcome.results:
            totals = totals_of(msgspec.json.decode(outcome.results, type=FleetFigures))
            self._update(run.tenant_id, figures=outcome.results, computed_at=now, **totals)
            self._finish(run.tenant_id, _S.SUCCEEDED, "", now=now)
        else:
            self._finish(run.tenant_id, _S.FAILED, outcome.error, now=now)

    def _start(self, tenant_id: str, now: datetime) -> bool:
        started = {"state": _S.RUNNING, "started_at": now, "progress_percent": 0}
        statement = update(FleetAdvice).where(
            FleetAdvice.tenant_id == tenant_id, FleetAdvice.state == _S.WAITING
        )
        with transaction(self._sessions) as session:
            if not changed_one(session, statement.values(started)):
                return False
        task = Task(
            database_url=self._database_url,
            tenant_id=tenant_id,
            since=now - self._period,
            until=now,
            now=now,
            max_memory_bytes=self._max_memory_bytes,
            max_cpu_seconds=int(self._max_duration.total_seconds()),
        )
        self.run = BoundedProcess(_MODULE, task)
        return True

    def _update(self, tenant_id: str, **values: object) -> None:
        statement = update(FleetAdvice).where(
            FleetAdvice.tenant_id == tenant_id, FleetAdvice.state == _S.RUNNING
        )
        with transaction(self._sessions) as session:
            changed_one(session, statement.values(values))

    def _finish(
        self, tenant_id: str, state: SimulationState, message: str, *, now: datetime
    ) -> None:
        percent = 100 if state is _S.SUCCEEDED else 0
        self._update(
            tenant_id, state=state, message=message, finished_at=now, progress_percent=percent
        )


def request_due(session: Session, *, now: datetime) -> int:
    """Let the figures be computed that were not since the last night; return their number.

    They wait for a usage ledger that is behind.
    """
    if (recorded_until(session) or now) < now - MAX_LAG:
        return 0
    night_at = now.replace(hour=NIGHT_HOUR, minute=0, second=0, microsecond=0)
    night_at -= timedelta(days=night_at > now)
    with_gpus = select(Appliance.tenant_id).where(in_service(), Appliance.gpu_count > 0)
    tenants = select(Tenant.id).where(Tenant.id.in_(with_gpus), Tenant.state == TenantState.ACTIVE)
    stored = select(FleetAdvice.tenant_id)
    missing = session.scalars(tenants.where(Tenant.id.not_in(stored))).all()
    session.add_all(
        FleetAdvice(tenant_id=ident, state=_S.WAITING, requested_at=now) for ident in missing
    )
    session.flush()
    was_interrupted = and_(
        FleetAdvice.state == _S.INTERRUPTED, FleetAdvice.finished_at <= now - AGAIN_AFTER
    )
    is_old = and_(FleetAdvice.state.not_in(UNFINISHED), FleetAdvice.finished_at < night_at)
    due = session.scalars(
        select(FleetAdvice.tenant_id).where(
            or_(was_interrupted, is_old), FleetAdvice.tenant_id.in_(tenants)
        )
    ).all()
    for ident in due:
        request(session, ident, now=now)
    return len(missing) + len(due)


def request(session: Session, tenant_id: str, *, now: datetime) -> None:
    """Let the figures of a tenant be computed, unless they wait or are being computed."""
    row = session.get(FleetAdvice, tenant_id)
    if row is None:
        session.add(FleetAdvice(tenant_id=tenant_id, state=_S.WAITING, requested_at=now))
    elif row.state.is_final:
        row.state, row.requested_at, row.message = _S.WAITING, now, ""
        row.progress_percent = 0
    session.flush()


def totals_of(figures: FleetFigures) -> dict[str, float]:
    """Return the sums of figures that have columns."""
    sums = {
        "gpus": sum(row.gpus for row in figures.models),
        "capacity_gpu_hours": sum(sum(row.capacity) for row in figures.models),
        "allocated_gpu_hours": sum(sum(row.allocated) for row in figures.models),
        "idle_gpu_hours": sum(sum(row.idle) for row in figures.models),
        "short_gpu_hours": sum(float(row.short().sum()) for row in figures.models),
    }
    return {name: round(value, 3) for name, value in sums.items()}

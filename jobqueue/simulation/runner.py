"""Runs simulations, each in a process of its own that is stopped at its bounds.

One simulation of a tenant runs at once, and a few of all tenants. The scheduler calls `step` often;
it never waits for a process. A simulation that runs according to its row, but in no process of this
runner, was interrupted: the scheduler was restarted, or another one took over.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import Row, select, update

from core.db import SessionFactory, changed_one, transaction
from jobqueue.simulation.bounded import BoundedProcess
from jobqueue.simulation.child import Task
from jobqueue.simulation.models import UNFINISHED, Simulation, SimulationState
from jobqueue.simulation.scenarios import Changes

MAX_RUNNING = 2
MAX_DURATION = timedelta(minutes=60)
MAX_MEMORY_BYTES = 3 * 1024**3
_INTERRUPTED = "The portal was restarted while it ran. Start it again."


class SimulationRunner:
    """The processes of simulations, by the id of these.

    Args:
        sessions: of the database with the simulations.
        database_url: of the database, for the processes.
        max_duration: after which a simulation fails.
        max_memory_bytes: of one process.
    """

    def __init__(
        self,
        sessions: SessionFactory,
        database_url: str,
        *,
        max_duration: timedelta = MAX_DURATION,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._sessions = sessions
        self._database_url = database_url
        self._max_duration = max_duration
        self._max_memory_bytes = max_memory_bytes
        self.runs: dict[str, BoundedProcess] = {}

    def step(self, now: datetime) -> None:
        """Store how far simulations are, end those that are over or deleted, and start others."""
        columns = (Simulation.id, Simulation.tenant_id, Simulation.state)
        unfinished = select(*columns).where(Simulation.state.in_(UNFINISHED))
        with transaction(self._sessions) as session:
            rows = session.execute(unfinished.order_by(Simulation.created_at, Simulation.id)).all()
        running = {row.id for row in rows if row.state is SimulationState.RUNNING}
        for ident in self.runs.keys() - running:
            # It was deleted, or another scheduler took over meanwhile.
            self.runs.pop(ident).stop()
        for ident in running - self.runs.keys():
            self._finish(ident, SimulationState.INTERRUPTED, _INTERRUPTED, now=now)
        for ident, run in list(self.runs.items()):
            self._follow(ident, run, now)
        self._start([row for row in rows if row.state is SimulationState.WAITING], now)

    def close(self) -> None:
        """End all processes; their simulations are interrupted."""
        while self.runs:
            self.runs.popitem()[1].stop()

    def _follow(self, ident: str, run: BoundedProcess, now: datetime) -> None:
        outcome = run.follow(
            now,
            lambda percent: self._update(ident, progress_percent=percent),
            if_late=" Choose a shorter period, or fewer policies.",
            if_killed="It was stopped: it needed more memory or processor time than it may use, or "
            "its results are too large. Choose a shorter period.",
        )
        if outcome is None:
            return
        del self.runs[ident]
        if outcome.results:
            self._update(ident, progress_percent=100, results=outcome.results)
            self._finish(ident, SimulationState.SUCCEEDED, "", now=now)
        else:
            self._finish(ident, SimulationState.FAILED, outcome.error, now=now)

    def _start(self, waiting: Sequence[Row[str, str, SimulationState]], now: datetime) -> None:
        for row in waiting:
            if len(self.runs) >= MAX_RUNNING:
                return
            if row.tenant_id in {run.tenant_id for run in self.runs.values()}:
                continue
            started = {"state": SimulationState.RUNNING, "started_at": now}
            with transaction(self._sessions) as session:
                is_first = changed_one(
                    session,
                    update(Simulation)
                    .where(Simulation.id == row.id, Simulation.state == SimulationState.WAITING)
                    .values(started),
                )
                simulation = session.get(Simulation, row.id) if is_first else None
            if simulation is not None:
                self.runs[row.id] = self._run(simulation, now)

    def _run(self, simulation: Simulation, now: datetime) -> BoundedProcess:
        task = Task(
            database_url=self._database_url,
            tenant_id=simulation.tenant_id,
            since=simulation.since,
            until=simulation.until,
            changes=msgspec.convert(simulation.changes, Changes),
            now=now,
            max_memory_bytes=self._max_memory_bytes,
            max_cpu_seconds=int(self._max_duration.total_seconds()),
        )
        return BoundedProcess(Task.__module__, task)

    def _update(self, ident: str, **values: object) -> bool:
        statement = update(Simulation).where(
            Simulation.id == ident, Simulation.state == SimulationState.RUNNING
        )
        with transaction(self._sessions) as session:
            return changed_one(session, statement.values(values))

    def _finish(self, ident: str, state: SimulationState, message: str, *, now: datetime) -> None:
        self._update(ident, state=state, message=message, finished_at=now)

"""Runs simulations, each in a process of its own that is stopped at its bounds.

One simulation of a tenant runs at once, and a few of all tenants. The scheduler calls `step` often;
it never waits for a process. A simulation that runs according to its row, but in no process of this
runner, was interrupted: the scheduler was restarted, or another one took over.
"""

import contextlib
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import msgspec
from sqlalchemy import Row, select, update

from core.db import SessionFactory, transaction
from core.guarded_update import changed_one
from jobqueue.simulation.child import ERROR, PROGRESS, RESULTS, Task
from jobqueue.simulation.models import UNFINISHED, Simulation, SimulationState
from jobqueue.simulation.scenarios import Changes

log = logging.getLogger(__name__)

MAX_RUNNING = 2
MAX_DURATION = timedelta(minutes=60)
MAX_MEMORY_BYTES = 3 * 1024**3
MAX_RESULT_BYTES = 4 * 1024**2
_MODULE = "jobqueue.simulation.child"
_INTERRUPTED = "The portal was restarted while it ran. Start it again."


@dataclass(slots=True)
class _Run:
    """A process that runs a simulation, with its folder."""

    tenant_id: str
    process: "subprocess.Popen[bytes]"
    folder: "TemporaryDirectory[str]"
    until: datetime
    percent: int = 0

    def read(self, name: str) -> bytes:
        """Return what the process wrote to a file; nothing if it is absent, or too large."""
        path = Path(self.folder.name) / name
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= MAX_RESULT_BYTES:
                return path.read_bytes()
            log.warning("a simulation has %d bytes of results", path.stat().st_size)
        return b""

    def stop(self) -> None:
        """End the process, and delete its folder."""
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


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
        self.runs: dict[str, _Run] = {}

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

    def _follow(self, ident: str, run: _Run, now: datetime) -> None:
        if run.process.poll() is None and now < run.until:
            percent = int(run.read(PROGRESS) or 0)
            if percent != run.percent:
                run.percent = percent
                self._update(ident, progress_percent=percent)
            return
        results, error = run.read(RESULTS), run.read(ERROR)
        is_late = run.process.poll() is None
        del self.runs[ident]
        run.stop()
        if results and not is_late:
            self._update(ident, progress_percent=100, results=results.decode())
            self._finish(ident, SimulationState.SUCCEEDED, "", now=now)
            return
        minutes = self._max_duration // timedelta(minutes=1)
        message = error.decode() or (
            f"It took more than {minutes} minutes. Choose a shorter period, or fewer policies."
            if is_late
            else "It was stopped: it needed more memory or processor time than it may use, or its "
            "results are too large. Choose a shorter period."
        )
        self._finish(ident, SimulationState.FAILED, message, now=now)

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

    def _run(self, simulation: Simulation, now: datetime) -> _Run:
        folder = TemporaryDirectory(prefix="vedette-simulation-")
        task = Task(
            database_url=self._database_url,
            tenant_id=simulation.tenant_id,
            since=simulation.since,
            until=simulation.until,
            changes=msgspec.convert(simulation.changes, Changes),
            now=now,
            folder=folder.name,
            max_memory_bytes=self._max_memory_bytes,
            max_cpu_seconds=int(self._max_duration.total_seconds()),
        )
        # A file without a name: the URL may have a password, and a pipe would let this wait.
        with TemporaryFile() as stdin:
            stdin.write(msgspec.json.encode(task))
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", _MODULE],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        return _Run(simulation.tenant_id, process, folder, now + self._max_duration)

    def _update(self, ident: str, **values: object) -> bool:
        statement = update(Simulation).where(
            Simulation.id == ident, Simulation.state == SimulationState.RUNNING
        )
        with transaction(self._sessions) as session:
            return changed_one(session, statement.values(values))

    def _finish(self, ident: str, state: SimulationState, message: str, *, now: datetime) -> None:
        self._update(ident, state=state, message=message, finished_at=now)

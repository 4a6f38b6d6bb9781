"""Simulations of a tenant's own jobs: start, list, read and delete them.

The scheduler runs them, see `jobqueue.simulation.runner`.
"""

from datetime import datetime, timedelta
from typing import Any, Unpack

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, undefer

from core.db import begin_writing
from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from jobqueue.models import Attempt, Job
from jobqueue.simulation.export import record
from jobqueue.simulation.models import UNFINISHED, Simulation
from jobqueue.simulation.results import Results
from jobqueue.simulation.scenarios import Changes, scenarios
from jobqueue.usage.measuring import Period
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

# Of one tenant: those that wait or run, and all.
MAX_UNFINISHED = 5
MAX_SIMULATIONS = 100
KEPT_FOR = timedelta(days=90)
SIMULATION_SORTS: Columns = {"created_at": Simulation.created_at, "state": Simulation.state}


class Comparison(msgspec.Struct, kw_only=True):
    """The results of a simulation: of each scenario by name, and the projects by number."""

    projects: dict[int, str] = {}
    scenarios: list[tuple[str, Results]]

    def rows(self, *, has_names: bool = False) -> list[dict[str, Any]]:
        """Return the scenarios as they are exported, with names of projects instead of numbers."""
        rows = [
            {"scenario": name, **msgspec.to_builtins(results)} for name, results in self.scenarios
        ]
        for project in (project for row in rows for project in row["projects"] if has_names):
            project["project"] = self.projects.get(project["project"], "")
        return rows


def list_simulations(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[Simulation]:
    """Return the simulations of the scope, the newest first."""
    scope.require(Permission.MANAGE_APPLIANCES)
    ordered = scope.select(select(Simulation), Simulation).order_by(
        Simulation.created_at.desc(), Simulation.id
    )
    return list_page(session, ordered, SIMULATION_SORTS, last=Simulation.id, **paging)


def get_simulation(session: Session, scope: Scope, simulation_id: str) -> Simulation:
    """Return a simulation of the scope."""
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, Simulation, simulation_id, kind="simulation")


def read_comparison(session: Session, scope: Scope, simulation_id: str) -> Comparison | None:
    """Return the results of a simulation; None as long as it has none."""
    scope.require(Permission.MANAGE_APPLIANCES)
    options = [undefer(Simulation.results)]
    simulation = scope.get(session, Simulation, simulation_id, kind="simulation", options=options)
    if simulation.results is None:
        return None
    return msgspec.json.decode(simulation.results, type=Comparison)


def finished_comparison(session: Session, scope: Scope, simulation_id: str) -> Comparison:
    """Return the results of a simulation.

    Raises:
        NotFoundError: it has none.
    """
    comparison = read_comparison(session, scope, simulation_id)
    if comparison is None:
        raise NotFoundError("The simulation has no results. Wait until it has succeeded.")
    return comparison


def create_simulation(
    session: Session, scope: Scope, period: Period, changes: Changes, *, now: datetime
) -> Simulation:
    """Let the jobs of a period be replayed with changes.

    Raises:
        InvalidInputError: a change is unknown, or no job ran in the period.
        ConflictError: too many simulations wait, or are stored.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    recording, names = record(session, tenant_id, period, max_jobs=0, now=now)
    scenarios(recording, changes, names=names, needs_jobs=False)
    if not _has_jobs(session, tenant_id, period):
        message = "No job that was submitted in this period has run. Choose a longer period."
        raise InvalidInputError(message, errors={"since": [message]})
    begin_writing(session)
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update())
    _check_room(session, tenant_id)
    simulation = Simulation(
        tenant_id=tenant_id,
        since=period.since,
        until=period.until,
        changes=msgspec.to_builtins(changes),
        created_by=scope.user_id or None,
        created_at=now,
    )
    session.add(simulation)
    session.flush()
    return simulation


def delete_simulation(session: Session, scope: Scope, simulation_id: str) -> None:
    """Delete a simulation; one that runs is stopped."""
    session.delete(get_simulation(session, scope, simulation_id))
    session.flush()


def expire_simulations(session: Session, *, now: datetime) -> None:
    """Delete simulations that are older than `KEPT_FOR`."""
    session.execute(delete(Simulation).where(Simulation.created_at < now - KEPT_FOR))


def _has_jobs(session: Session, tenant_id: str, period: Period) -> bool:
    ran = select(Job.id).join(Attempt, Attempt.job_id == Job.id)
    ran = ran.where(
        Job.tenant_id == tenant_id,
        Job.submitted_at >= period.since,
        Job.submitted_at < period.until,
        Attempt.started_at.is_not(None),
    )
    return session.scalar(ran.limit(1)) is not None


def _check_room(session: Session, tenant_id: str) -> None:
    count = select(func.count()).where(Simulation.tenant_id == tenant_id)
    if (session.scalar(count) or 0) >= MAX_SIMULATIONS:
        raise ConflictError(f"There are {MAX_SIMULATIONS} simulations. Delete one first.")
    if (session.scalar(count.where(Simulation.state.in_(UNFINISHED))) or 0) >= MAX_UNFINISHED:
        raise ConflictError(
            f"{MAX_UNFINISHED} simulations wait or run. Wait for one to end, or delete it."
        )

"""Simulations that the portal runs: started, followed, bounded, interrupted and deleted."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import update

from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.models import Attempt
from jobqueue.projects.models import Project
from jobqueue.simulation.models import Simulation, SimulationState
from jobqueue.simulation.runner import SimulationRunner
from jobqueue.simulation.scenarios import Changes
from jobqueue.simulation.service import (
    KEPT_FOR,
    MAX_UNFINISHED,
    create_simulation,
    delete_simulation,
    expire_simulations,
    finished_comparison,
    read_comparison,
)
from jobqueue.usage.measuring import Period
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.polling import eventually
from tests.unit.jobqueue.builders import start

HOUR = timedelta(hours=1)
PERIOD = Period(NOON - HOUR, NOON + HOUR)
LATER = NOON + HOUR


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'vedette.db'}"


@pytest.fixture
def runner(sessions: SessionFactory, database_url: str) -> Iterator[SimulationRunner]:
    runner = SimulationRunner(sessions, database_url)
    yield runner
    runner.close()


@pytest.fixture(autouse=True)
def past_job(sessions: SessionFactory, cast: Cast) -> None:
    """A job of Alice's that ran for five minutes, in a project."""
    with sessions.begin() as session:
        project = Project(tenant_id=cast.acme.id, name="vision", created_at=NOON)
        session.add(project)
        session.flush()
        attempt = start(session, cast, gpus=2)
        attempt.job.project_id = project.id
        ended = {"started_at": NOON, "finished_at": NOON + timedelta(minutes=5)}
        session.execute(update(Attempt).where(Attempt.id == attempt.id).values(**ended))


def created(sessions: SessionFactory, cast: Cast, changes: Changes, who: str = "alice") -> str:
    with sessions.begin() as session:
        scope = scope_of(getattr(cast, who))
        return create_simulation(session, scope, PERIOD, changes, now=LATER).id


def read(sessions: SessionFactory, ident: str) -> Simulation:
    with sessions() as session:
        return session.get_one(Simulation, ident)


def is_over(sessions: SessionFactory, runner: SimulationRunner, ident: str) -> bool:
    runner.step(LATER)
    return read(sessions, ident).state.is_final


def test_a_simulation_runs_and_has_the_results_of_all_scenarios(
    sessions: SessionFactory, cast: Cast, runner: SimulationRunner
) -> None:
    changes = Changes(
        policies=("best_fit",), added=("1xdgx-01",), quotas=("vision:gpus:maximum=1",)
    )
    ident = created(sessions, cast, changes)
    runner.step(LATER)
    assert read(sessions, ident).state is SimulationState.RUNNING
    eventually(partial(is_over, sessions, runner, ident))
    simulation = read(sessions, ident)
    assert (simulation.message, simulation.state) == ("", SimulationState.SUCCEEDED)
    assert (simulation.progress_percent, simulation.finished_at) == (100, LATER)
    with sessions() as session:
        comparison = finished_comparison(session, scope_of(cast.alice), ident)
    names = [name for name, _ in comparison.scenarios]
    assert names == ["today", "best_fit, other quotas, 1 more appliance"]
    assert comparison.projects == {1: "vision"}
    # Two GPUs are more than the quota.
    assert [outcome.waits.started for _, outcome in comparison.scenarios] == [1, 0]


def test_one_simulation_of_a_tenant_runs_at_once(
    sessions: SessionFactory, cast: Cast, runner: SimulationRunner
) -> None:
    first, second = (created(sessions, cast, Changes()) for _ in range(2))
    runner.step(LATER)
    states = [read(sessions, ident).state for ident in (first, second)]
    assert states == [SimulationState.RUNNING, SimulationState.WAITING]


def test_a_simulation_of_a_restarted_scheduler_is_interrupted(
    sessions: SessionFactory, cast: Cast, runner: SimulationRunner, database_url: str
) -> None:
    ident = created(sessions, cast, Changes())
    runner.step(LATER)
    SimulationRunner(sessions, database_url).step(LATER)
    simulation = read(sessions, ident)
    assert simulation.state is SimulationState.INTERRUPTED
    assert "Start it again" in simulation.message
    # The first one stops its process, and doesn't change the row.
    runner.step(LATER)
    assert read(sessions, ident).state is SimulationState.INTERRUPTED


def test_a_deleted_simulation_is_stopped(
    sessions: SessionFactory, cast: Cast, runner: SimulationRunner
) -> None:
    ident = created(sessions, cast, Changes())
    runner.step(LATER)
    [run] = runner.runs.values()
    with sessions.begin() as session:
        delete_simulation(session, scope_of(cast.alice), ident)
    runner.step(LATER)
    assert run.process.poll() is not None
    assert not Path(run.folder.name).exists()


def test_a_simulation_that_takes_too_long_fails(
    sessions: SessionFactory, cast: Cast, database_url: str
) -> None:
    runner = SimulationRunner(sessions, database_url, max_duration=timedelta(minutes=1))
    ident = created(sessions, cast, Changes())
    runner.step(LATER)
    runner.step(LATER + timedelta(minutes=2))
    simulation = read(sessions, ident)
    assert simulation.state is SimulationState.FAILED
    assert simulation.message.startswith("It took more than 1 minutes")


def test_a_simulation_that_needs_too_much_memory_fails(
    sessions: SessionFactory, cast: Cast, database_url: str
) -> None:
    runner = SimulationRunner(sessions, database_url, max_memory_bytes=1024**2)
    ident = created(sessions, cast, Changes())
    eventually(partial(is_over, sessions, runner, ident))
    simulation = read(sessions, ident)
    assert simulation.state is SimulationState.FAILED
    assert "memory" in simulation.message


def test_what_is_wrong_is_refused_at_once(sessions: SessionFactory, cast: Cast) -> None:
    for changes, field in (
        (Changes(policies=("tetris",)), "policies"),
        (Changes(added=("2xdgx-99",)), "added"),
        (Changes(shares=("speech=2",)), "shares"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            created(sessions, cast, changes)
        assert list(refused.value.errors) == [field]
    empty = Period(NOON - 3 * HOUR, NOON - 2 * HOUR)
    with (
        pytest.raises(InvalidInputError, match="longer period"),
        sessions.begin() as session,
    ):
        create_simulation(session, scope_of(cast.alice), empty, Changes(), now=LATER)
    with pytest.raises(ForbiddenError):
        created(sessions, cast, Changes(), who="bob")


def test_a_tenant_has_a_few_unfinished_simulations(sessions: SessionFactory, cast: Cast) -> None:
    for _ in range(MAX_UNFINISHED):
        created(sessions, cast, Changes())
    with pytest.raises(ConflictError):
        created(sessions, cast, Changes())


def test_results_are_only_those_of_the_own_tenant_and_only_kept_for_a_while(
    sessions: SessionFactory, cast: Cast
) -> None:
    ident = created(sessions, cast, Changes())
    with sessions() as session:
        assert read_comparison(session, scope_of(cast.alice), ident) is None
        with pytest.raises(NotFoundError):
            finished_comparison(session, scope_of(cast.alice), ident)
        with pytest.raises(NotFoundError):
            read_comparison(session, scope_of(cast.charlie), ident)
    with sessions.begin() as session:
        expire_simulations(session, now=LATER + KEPT_FOR)
        assert session.get(Simulation, ident) is not None
        expire_simulations(session, now=LATER + KEPT_FOR + HOUR)
        session.expire_all()
        assert session.get(Simulation, ident) is None

"""Appliances on a real MariaDB: races of heartbeats, sweeps and people, and lists of thousands."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select

import alerting.models as _alerting  # noqa: F401 - these fill Base.metadata
import core.leases as _leases  # noqa: F401
from core.db import Base, SessionFactory, create_database_engine, create_session_factory
from core.errors import ConflictError, VedetteError
from core.ids import new_id
from jobqueue.dispatch import dispatch
from jobqueue.models import Attempt
from jobqueue.retirement import retire
from jobqueue.service import JobRequest, submit_job
from jobqueue.states import HOLDING
from tenants.fleet.appliance_list import SORTS
from tenants.fleet.appliances import (
    ApplianceChanges,
    ApplianceFilter,
    change_appliance,
    filter_choices,
    list_appliances,
    record_heartbeat,
    sweep_appliances,
)
from tenants.fleet.life import LifeState
from tenants.models import Appliance, ApplianceEvent, ApplianceState
from tests.cast import NOON, Cast, make_appliance, make_cast, scope_of
from tests.integration.mariadb import mariadb_server

GIB = 1024**3
ROUNDS = 15
SOON = NOON + timedelta(seconds=40)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("mariadb")
    with mariadb_server(folder) as url:
        engine = create_database_engine(url)
        Base.metadata.create_all(engine)
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def cast(engine: Engine) -> Cast:
    with create_session_factory(engine).begin() as session:
        return make_cast(session)


@pytest.fixture
def sessions(engine: Engine) -> SessionFactory:
    return create_session_factory(engine)


def made(sessions: SessionFactory, cast: Cast, name: str, **changes: Any) -> str:  # noqa: ANN401 - columns
    gpus = [{"index": 0, "uuid": f"GPU-{name}", "model": "H100", "memory_bytes": 80 * GIB}]
    inventory = {
        "hostname": name, "cpu_count": 64, "memory_bytes": 512 * GIB, "gpus": gpus,
        "executors": ["docker"],
    }  # fmt: skip
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, name, inventory=inventory)
        for key, value in changes.items():
            setattr(appliance, key, value)
        return str(appliance.id)


def together(*works: Callable[[], object]) -> list[object]:
    """Do all at the same time; return what each returned, or the error that it raised."""
    barrier = Barrier(len(works))

    def do(work: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return work()
        except VedetteError as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(do, works))


def test_of_two_heartbeats_with_the_same_news_one_makes_the_event(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        ident = made(sessions, cast, f"beat-{number}", state=ApplianceState.UNREACHABLE)

        def beat(ident: str = ident) -> None:
            with sessions.begin() as session:
                record_heartbeat(
                    session, ident, inventory={"gpus": []}, agent_version="2", sent_at=NOON,
                    now=NOON,
                )  # fmt: skip

        together(beat, beat, beat)
        with sessions() as session:
            statement = select(ApplianceEvent.kind).where(ApplianceEvent.appliance_id == ident)
            assert sorted(session.scalars(statement)) == ["inventory", "state"]


def test_a_heartbeat_wins_against_the_sweep_and_no_change_goes_untold(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        ident = made(sessions, cast, f"sweep-{number}")

        def beat(ident: str = ident) -> None:
            with sessions.begin() as session:
                inventory = session.get_one(Appliance, ident).inventory
                record_heartbeat(
                    session,
                    ident,
                    inventory=inventory,
                    agent_version="",
                    sent_at=SOON,
                    now=SOON,
                )

        def sweep() -> None:
            with sessions.begin() as session:
                sweep_appliances(
                    session, now=SOON, stale_after=timedelta(seconds=30),
                    unreachable_after=timedelta(days=1), lost_after=timedelta(days=1),
                )  # fmt: skip

        together(beat, sweep)
        with sessions() as session:
            assert session.get_one(Appliance, ident).state is ApplianceState.ONLINE
            statement = select(ApplianceEvent.message).where(ApplianceEvent.appliance_id == ident)
            told = session.scalars(statement.order_by(ApplianceEvent.id)).all()
        # Stale and back, or never stale at all.
        assert [text.split()[0] for text in told] in ([], ["Stale:", "Online"])


def test_an_appliance_is_retired_or_gets_the_job_and_never_both(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        ident = made(sessions, cast, f"retire-{number}")
        with sessions.begin() as session:
            request = JobRequest(
                name="train", image="acme/train:1", command=["train"], gpus=1, appliance_id=ident
            )
            submit_job(session, scope_of(cast.bob), request, now=NOON)

        def take_out(ident: str = ident) -> bool:
            with sessions.begin() as session:
                return bool(retire(session, scope_of(cast.alice), ident, now=NOON).retired_at)

        def place() -> None:
            with sessions.begin() as session:
                dispatch(session, now=NOON)

        outcome, _ = together(take_out, place)
        with sessions() as session:
            statement = select(func.count()).where(
                Attempt.appliance_id == ident, Attempt.state.in_(HOLDING)
            )
            held = session.scalar(statement)
        assert held == (0 if outcome is True else 1), outcome
        assert outcome is True or isinstance(outcome, ConflictError)


def test_of_two_that_want_one_name_one_gets_it(sessions: SessionFactory, cast: Cast) -> None:
    for number in range(ROUNDS):
        idents = [made(sessions, cast, f"name-{number}-{side}") for side in "ab"]
        changes = ApplianceChanges(name=f"wanted-{number}")

        def rename(ident: str, changes: ApplianceChanges = changes) -> str:
            with sessions.begin() as session:
                change_appliance(session, scope_of(cast.alice), ident, changes, now=NOON)
            return ident

        outcomes = together(*[lambda one=ident: rename(one) for ident in idents])
        refused = [one for one in outcomes if isinstance(one, ConflictError)]
        assert len(refused) == 1
        assert refused[0].code == "name_taken"


def test_ten_thousand_are_listed_narrowed_and_sorted(sessions: SessionFactory, cast: Cast) -> None:
    rows = [
        {
            "id": new_id(), "tenant_id": cast.globex.id, "name": f"gpu-{n:05}",
            "site": f"site-{n % 20}", "region": f"region-{n % 4}", "labels": {"rack": f"r{n % 50}"},
            "state": list(ApplianceState)[n % 5], "secret_hash": f"{n:064}", "inventory": {},
            "gpu_count": n % 9, "gpu_model": f"model {n % 6}", "appliance_class": f"c{n % 7}",
            "enrolled_at": NOON, "last_seen_at": NOON - timedelta(seconds=n),
            "drained_at": NOON if n % 10 == 1 else None,
        }
        for n in range(10_000)
    ]  # fmt: skip
    with sessions.begin() as session:
        session.execute(insert(Appliance), rows)
    scope = scope_of(cast.charlie)
    totals = {
        ApplianceFilter(): 10_000,
        ApplianceFilter(site="site-3", region="region-3"): 500,
        ApplianceFilter(label="rack=r7"): 200,
        ApplianceFilter(label="rack"): 10_000,
        ApplianceFilter(life=LifeState.DRAINED): 1000,
        ApplianceFilter(life=LifeState.ONLINE): 1000,
        ApplianceFilter(search="GPU-0123"): 10,
        ApplianceFilter(gpu_model="model 5", appliance_class="c0"): 238,
    }
    with sessions() as session:
        for wanted, total in totals.items():
            assert list_appliances(session, scope, wanted).total == total, wanted
        for sort in SORTS:
            page = list_appliances(session, scope, sort=f"-{sort}", page=200, page_size=50)
            assert len(page.items) == 50, sort
        assert len(filter_choices(session, scope).sites) == 20

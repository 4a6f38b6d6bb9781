"""Appliances on a real MariaDB: races of heartbeats, sweeps and people, and lists of thousands."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, func, insert, select
from sqlalchemy.orm import ORMExecuteState, Session

from core.db import SessionFactory
from core.errors import ConflictError, VedetteError
from core.ids import new_id
from jobqueue.dispatch.appliance_lifecycle import retire_idle_appliance
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.models import Attempt
from jobqueue.queue.service import submit_job
from jobqueue.states import ALLOCATED_STATES
from protocol.inventory import Inventory
from protocol.job_spec import JobRequest
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance
from tenants.fleet.appliances import SORTS, ApplianceFilter, filter_choices, list_appliances
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.liveness import sweep_appliances
from tenants.fleet.states import EffectiveStatus
from tenants.models import Appliance, ApplianceEvent, ApplianceState
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.fixtures.racing import race

pytestmark = pytest.mark.needs_mariadb

GIB = 1024**3
ROUNDS = 5
SOON = NOON + timedelta(seconds=40)


def made(sessions: SessionFactory, cast: Cast, name: str, **changes: Any) -> str:  # noqa: ANN401 - columns
    gpus = [{"index": 0, "uuid": f"GPU-{name}", "model": "H100", "memory_bytes": 80 * GIB}]
    inventory = {
        "hostname": name,
        "cpu_count": 64,
        "memory_bytes": 512 * GIB,
        "gpus": gpus,
        "executors": ["docker"],
    }
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, name, inventory=inventory)
        for key, value in changes.items():
            setattr(appliance, key, value)
        return str(appliance.id)


def together(*works: Callable[[], object]) -> list[object]:
    """Do all at the same time; return what each returned, or the error that it raised."""

    def outcome(work: Callable[[], object]) -> object:
        try:
            return work()
        except VedetteError as error:
            return error

    return race([partial(outcome, work) for work in works])


def sweep(sessions: SessionFactory) -> None:
    with sessions.begin() as session:
        sweep_appliances(
            session,
            now=SOON,
            stale_after=timedelta(seconds=30),
            unreachable_after=timedelta(days=1),
            lost_after=timedelta(days=1),
        )


def test_of_two_heartbeats_with_the_same_change_one_makes_the_event(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        ident = made(sessions, cast, f"beat-{number}", state=ApplianceState.UNREACHABLE)

        def beat(ident: str = ident) -> None:
            with sessions.begin() as session:
                record_heartbeat(
                    session,
                    ident,
                    inventory=Inventory(hostname="dgx"),
                    agent_version="2",
                    sent_at=NOON,
                    now=NOON,
                )

        together(beat, beat, beat)
        with sessions() as session:
            statement = select(ApplianceEvent.kind).where(ApplianceEvent.appliance_id == ident)
            assert sorted(session.scalars(statement)) == ["inventory", "state"]


def test_a_heartbeat_wins_against_the_sweep_and_no_change_stays_unrecorded(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        ident = made(sessions, cast, f"sweep-{number}")

        def beat(ident: str = ident) -> None:
            with sessions.begin() as session:
                inventory = msgspec.convert(session.get_one(Appliance, ident).inventory, Inventory)
                record_heartbeat(
                    session,
                    ident,
                    inventory=inventory,
                    agent_version="",
                    sent_at=SOON,
                    now=SOON,
                )

        together(beat, partial(sweep, sessions))
        with sessions() as session:
            assert session.get_one(Appliance, ident).state is ApplianceState.ONLINE
            statement = select(ApplianceEvent.message).where(ApplianceEvent.appliance_id == ident)
            told = session.scalars(statement.order_by(ApplianceEvent.id)).all()
        # Stale and back, or never stale at all.
        assert [text.split()[0] for text in told] in ([], ["Stale:", "Online"])


def just_before_the_write(session: Session, act: Callable[[], None]) -> None:
    """Have somebody else act, in a transaction of their own, right before the first UPDATE."""
    acts = [act]

    def look(execution: ORMExecuteState) -> None:
        if execution.is_update and acts:
            acts.pop()()

    event.listen(session, "do_orm_execute", look)


def test_a_sweep_between_a_heartbeats_read_and_its_write_is_recorded(
    sessions: SessionFactory, cast: Cast
) -> None:
    ident = made(sessions, cast, "between")
    with sessions() as session:
        inventory = msgspec.convert(session.get_one(Appliance, ident).inventory, Inventory)
    with sessions.begin() as session:
        just_before_the_write(session, lambda: sweep(sessions))
        record_heartbeat(
            session, ident, inventory=inventory, agent_version="", sent_at=SOON, now=SOON
        )

    with sessions() as session:
        statement = select(ApplianceEvent.message).where(ApplianceEvent.appliance_id == ident)
        told = session.scalars(statement.order_by(ApplianceEvent.id)).all()
    assert [text.split()[0] for text in told] == ["Stale:", "Online"]


def test_an_agent_whose_place_is_taken_meanwhile_writes_nothing_more(
    sessions: SessionFactory, cast: Cast
) -> None:
    ident = made(sessions, cast, "place")

    def beat(session: Session, instance: str) -> None:
        record_heartbeat(
            session,
            ident,
            inventory=Inventory(hostname="dgx"),
            agent_version=instance,
            sent_at=SOON,
            now=SOON,
            instance_id=instance,
        )

    def second() -> None:
        with sessions.begin() as session:
            beat(session, "second")

    with sessions.begin() as session:
        beat(session, "first")
    with sessions.begin() as session:
        just_before_the_write(session, second)
        beat(session, "first")

    with sessions() as session:
        assert session.get_one(Appliance, ident).agent_version == "second"


def test_an_appliance_is_retired_or_gets_the_job_and_never_both(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        ident = made(sessions, cast, f"retire-{number}")
        with sessions.begin() as session:
            request = JobRequest(
                name="train", image="acme/train:1", command=["train"], gpus=1, appliance_id=ident
            )
            submit_job(session, scope_of(cast.bob), request, box=BOX, now=NOON)

        def take_out(ident: str = ident) -> bool:
            with sessions.begin() as session:
                return bool(
                    retire_idle_appliance(session, scope_of(cast.alice), ident, now=NOON).retired_at
                )

        def place() -> None:
            Dispatcher(sessions.begin).cycle(now=NOON)

        outcome, _ = together(take_out, place)
        with sessions() as session:
            statement = select(func.count()).where(
                Attempt.appliance_id == ident, Attempt.state.in_(ALLOCATED_STATES)
            )
            held = session.scalar(statement)
        assert held == (0 if outcome is True else 1), outcome
        assert outcome is True or isinstance(outcome, ConflictError)


def test_one_of_two_appliances_that_are_renamed_alike_gets_the_name(
    sessions: SessionFactory, cast: Cast
) -> None:
    for number in range(ROUNDS):
        idents = [made(sessions, cast, f"name-{number}-{side}") for side in "ab"]
        changes = ApplianceChanges(name=f"wanted-{number}")

        def rename(ident: str, changes: ApplianceChanges = changes) -> str:
            with sessions.begin() as session:
                change_appliance(session, scope_of(cast.alice), ident, changes, now=NOON)
            return ident

        outcomes = together(*[partial(rename, ident) for ident in idents])
        refused = [outcome for outcome in outcomes if isinstance(outcome, ConflictError)]
        assert len(refused) == 1
        assert refused[0].code == "name_taken"


def test_ten_thousand_are_listed_narrowed_and_sorted(sessions: SessionFactory, cast: Cast) -> None:
    rows = [
        {
            "id": new_id(),
            "tenant_id": cast.globex.id,
            "name": f"gpu-{n:05}",
            "site": f"site-{n % 20}",
            "region": f"region-{n % 4}",
            "labels": {"rack": f"r{n % 50}"},
            "state": list(ApplianceState)[n % 5],
            "secret_hash": f"{n:064}",
            "inventory": {},
            "gpu_count": n % 9,
            "gpu_model": f"model {n % 6}",
            "appliance_class": f"c{n % 7}",
            "enrolled_at": NOON,
            "last_seen_at": NOON - timedelta(seconds=n),
            "drained_at": NOON if n % 10 == 1 else None,
        }
        for n in range(10_000)
    ]
    with sessions.begin() as session:
        session.execute(insert(Appliance), rows)
    scope = scope_of(cast.charlie)
    totals = {
        ApplianceFilter(): 10_000,
        ApplianceFilter(site="site-3", region="region-3"): 500,
        ApplianceFilter(label="rack=r7"): 200,
        ApplianceFilter(label="rack"): 10_000,
        ApplianceFilter(status=EffectiveStatus.DRAINED): 1000,
        ApplianceFilter(status=EffectiveStatus.ONLINE): 1000,
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

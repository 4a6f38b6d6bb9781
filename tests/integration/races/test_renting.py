"""Tenants that place jobs on one provider's appliances at the same moment, on both databases."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import select

from core.db import SessionFactory, transaction
from core.errors import VedetteError
from jobqueue.dispatch.appliance_lifecycle import retire_idle_appliance
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.jobs.transitions import move_attempt
from jobqueue.models import Attempt
from jobqueue.placement.decisions import Action
from jobqueue.states import ALLOCATED_STATES, AttemptState
from tenants.models import Appliance, Tenant, TenantState
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.racing import race
from tests.unit.jobqueue.builders import add_appliance, submit
from tests.unit.jobqueue.rental_builders import grant, offer

pytestmark = pytest.mark.timeout(300)

APPLIANCES, GPUS, ROUNDS = 2, 8, 3


@pytest.fixture(scope="module")
def initech(factory: SessionFactory, people: Cast) -> Tenant:
    """A third tenant, which rents from Globex as Acme does; bob submits its jobs."""
    with transaction(factory) as session:
        tenant = Tenant(slug="initech", name="Initech", state=TenantState.ACTIVE, created_at=NOON)
        session.add(tenant)
        session.flush()
        rows = [add_appliance(session, people.globex, f"shared-{n}") for n in range(APPLIANCES)]
        offer(session, rows)
        grant(session, people.acme, people.globex)
        grant(session, tenant, people.globex)
        return tenant


def submit_all(factory: SessionFactory, people: Cast, initech: Tenant, number: int) -> None:
    """Submit more jobs of each of the three than the appliances have GPUs."""
    with transaction(factory) as session:
        for count in range(APPLIANCES * GPUS // 2):
            name = f"job-{number}-{count}"
            submit(session, people.charlie, name, gpus=1)
            submit(session, people.alice, name, gpus=1, max_gpu_hour_price=10)
            job = submit(session, people.bob, name, gpus=1, max_gpu_hour_price=10)
            job.tenant_id = initech.id


def dispatch_once(dispatcher: Dispatcher) -> Counter[Action]:
    """Go through the queues of all tenants once; a deadlock is for the next cycle."""
    try:
        return dispatcher.cycle(now=NOON)
    except VedetteError:
        return Counter()


def is_placing(dispatcher: Dispatcher) -> bool:
    """Go through the queues of all tenants once; return whether jobs were placed."""
    return bool(dispatch_once(dispatcher)[Action.ASSIGN])


def allocated(factory: SessionFactory) -> list[tuple[str, str]]:
    """Return the tenant and the GPU of each allocation."""
    with transaction(factory) as session:
        rows = session.execute(
            select(Attempt.tenant_id, Attempt.gpu_uuids).where(
                Attempt.state.in_(ALLOCATED_STATES),
                Attempt.appliance_id.in_(
                    select(Appliance.id).where(Appliance.name.like("shared-%"))
                ),
            )
        ).all()
    return [(tenant_id, uuid) for tenant_id, uuids in rows for uuid in uuids]


def end_some(factory: SessionFactory) -> None:
    """Let a third of what runs end."""
    with transaction(factory) as session:
        running = session.scalars(
            select(Attempt.id).where(Attempt.state.in_(ALLOCATED_STATES)).order_by(Attempt.id)
        ).all()
        for ident in running[::3]:
            move_attempt(session, ident, AttemptState.STOPPED, finished_at=NOON)


def test_no_gpu_is_allocated_twice_while_three_tenants_place_jobs(
    factory: SessionFactory, people: Cast, initech: Tenant
) -> None:
    owners: Counter[str] = Counter()
    dispatchers = [Dispatcher(lambda: transaction(factory)) for _ in range(4)]
    everyone = {people.globex.id, people.acme.id, initech.id}
    # On a busy machine, all turns of a tenant may be void for some rounds, but not for ever.
    for number in range(5 * ROUNDS):
        if number >= ROUNDS and owners.keys() == everyone:
            break
        submit_all(factory, people, initech, number)
        race([partial(dispatch_once, dispatcher) for dispatcher in dispatchers])
        held = allocated(factory)
        uuids = [uuid for _, uuid in held]
        assert len(uuids) == len(set(uuids))
        owners.update(tenant_id for tenant_id, _ in held)
        end_some(factory)
    assert owners.keys() == everyone
    while dispatch_once(dispatchers[0])[Action.ASSIGN]:
        pass
    uuids = [uuid for _, uuid in allocated(factory)]
    assert len(uuids) == len(set(uuids)) == APPLIANCES * GPUS
    with transaction(factory) as session:
        attempts = session.scalars(select(Attempt)).unique().all()
    assert {bool(a.contract_id) for a in attempts if a.tenant_id == people.globex.id} == {False}
    assert {a.provider_id for a in attempts if a.contract_id} == {people.globex.id}


def test_an_appliance_is_not_retired_while_a_customer_gets_it(
    factory: SessionFactory, people: Cast
) -> None:
    for number in range(ROUNDS):
        with transaction(factory) as session:
            row = add_appliance(session, people.globex, f"one-{number}")
            offer(session, [row], name=f"offer-{number}")
            grant(session, people.acme, people.globex, name=f"offer-{number}")
            submit(session, people.alice, f"one-{number}", gpus=8, max_gpu_hour_price=10)
        ident = row.id

        def retire(ident: str = ident) -> bool:
            try:
                with transaction(factory) as session:
                    retire_idle_appliance(session, scope_of(people.charlie), ident, now=NOON)
            except VedetteError:
                return False
            return True

        dispatcher = Dispatcher(lambda: transaction(factory))
        racers: list[Callable[[], bool]] = [retire, partial(is_placing, dispatcher)]
        is_retired, _ = race(racers)
        with transaction(factory) as session:
            there = select(Attempt.id).where(
                Attempt.appliance_id == ident, Attempt.state.in_(ALLOCATED_STATES)
            )
            has_job = session.scalar(there) is not None
        assert not (is_retired and has_job)

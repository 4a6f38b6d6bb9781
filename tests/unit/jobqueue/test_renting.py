"""Jobs of a customer on appliances of a provider, from the grant to the ledger."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.errors import ConflictError
from jobqueue.dispatch import dispatcher as dispatching
from jobqueue.dispatch.appliance_lifecycle import (
    lose_attempts_at,
    retire_idle_appliance,
    stop_unrented,
)
from jobqueue.dispatch.capacity import list_capacities
from jobqueue.dispatch.snapshot import read_snapshot
from jobqueue.models import Attempt
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.placement.decisions import Action
from jobqueue.queue.pending import explain_job, try_job
from jobqueue.queue.service import job_events
from jobqueue.reservations.models import Reservation
from jobqueue.states import AttemptState, JobState, Reason
from jobqueue.usage.ledger import record_usage
from jobqueue.usage.models import UsageEntry
from protocol.attempts import ObservedState
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import JobRequest
from tenants.models import Appliance, Tenant, TenantState
from tenants.models.rentals import Grant
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import (
    GIB,
    add_appliance,
    dispatch,
    gpu_uuid,
    inventory,
    report,
    submit,
)
from tests.unit.jobqueue.mig_gpus import mig_gpus
from tests.unit.jobqueue.rental_builders import grant, offer
from tests.unit.jobqueue.rented_jobs import lend, placed, rent
from timeseries.store import Store

HOUR = timedelta(hours=1)


@pytest.fixture
def dgx(prefill: Callable[[Fill], str], session: Session, cast: Cast) -> Appliance:
    """An appliance of Globex's that Acme rents."""
    ident = prefill(lend)
    session.add_all([cast.acme, cast.globex])
    return session.get_one(Appliance, ident)


def test_a_job_runs_on_a_rented_appliance_under_its_contract(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    before = dgx.desired_generation
    attempt = placed(session, rent(session, cast, gpus=2))
    session.refresh(dgx)
    assert (attempt.state, attempt.appliance_id) == (AttemptState.STARTING, dgx.id)
    assert (attempt.tenant_id, attempt.provider_id) == (cast.acme.id, cast.globex.id)
    assert attempt.contract_id == "pool-acme"
    assert len(attempt.gpu_uuids) == 2
    assert dgx.desired_generation == before + 1
    assert attempt.placement == {
        "policy": "rented",
        "reason": (
            "No own appliance can run the job now. pool can run it for 2.50 an hour for each GPU."
        ),
        "rejections": [],
        "offer": "pool",
        "price": "2.50000000",
    }


def test_no_text_of_the_customers_names_the_appliance(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    rent(session, cast, "first", gpus=8)
    second = rent(session, cast, "second", gpus=8)
    dispatch(session, now=NOON)
    explanation = explain_job(session, scope_of(cast.alice), second.id, now=NOON)
    assert explanation is not None
    events = [entry.message for entry in job_events(session, scope_of(cast.alice), second.id)]
    said = f"{second.message} {events} {explanation}"
    assert "offer pool: 0 of 8 GPUs free, 8 requested" in said
    assert dgx.name not in said
    assert dgx.id not in f"{second.message} {events} {explanation.rejections} {explanation.needs}"


def test_a_bound_job_moves_to_an_offer_that_opens(session: Session, cast: Cast) -> None:
    own = add_appliance(session, cast.acme, "acme-dgx")
    submit(session, cast.alice, "first", gpus=8)
    second = rent(session, cast, "second")
    bound = placed(session, second)
    assert (bound.state, bound.appliance_id) == (AttemptState.BOUND, own.id)
    rented = add_appliance(session, cast.globex, "globex-dgx")
    offer(session, [rented])
    grant(session, cast.acme, cast.globex)
    attempt = placed(session, second)
    assert (attempt.id, attempt.appliance_id) == (bound.id, rented.id)
    assert (attempt.contract_id, attempt.provider_id) == ("pool-acme", cast.globex.id)


@pytest.mark.usefixtures("dgx")
def test_a_job_that_waits_for_an_offer_has_no_attempt(session: Session, cast: Cast) -> None:
    submit(session, cast.charlie, "own", gpus=8)
    dispatch(session, now=NOON)
    job = rent(session, cast)
    assert dispatch(session, now=NOON) == {Action.WAIT: 1}
    session.refresh(job)
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_RESOURCES)
    assert job.attempts == []
    assert job.message == (
        "No rented appliance is free. The job starts on the first that has room. "
        "offer pool: 0 of 8 GPUs free, 1 requested."
    )


@pytest.mark.usefixtures("dgx")
def test_a_bound_job_far_back_in_the_queue_leaves_an_appliance_that_is_drained(
    session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "MAX_FOLLOWED", 0)
    own = add_appliance(session, cast.acme, "acme-dgx")
    submit(session, cast.alice, "first", gpus=8)
    submit(session, cast.charlie, "others", gpus=8)
    dispatch(session, now=NOON)
    job = rent(session, cast, "second")
    assert placed(session, job).state is AttemptState.BOUND
    own.drained_at = NOON
    session.flush()
    assert dispatch(session, now=NOON) == {Action.WAIT: 1}
    session.refresh(job)
    assert job.attempts == []


def test_nobody_uses_an_appliance_without_a_grant(session: Session, cast: Cast) -> None:
    row = add_appliance(session, cast.globex, "globex-dgx")
    offer(session, [row])
    job = rent(session, cast)
    dispatch(session, now=NOON)
    session.refresh(job)
    assert job.attempts == []
    assert "No contract lets its jobs run on rented appliances." in job.message


@pytest.mark.usefixtures("dgx")
def test_nobody_uses_appliances_of_a_suspended_provider(session: Session, cast: Cast) -> None:
    session.get_one(Tenant, cast.globex.id).state = TenantState.SUSPENDED
    session.flush()
    job = rent(session, cast)
    dispatch(session, now=NOON)
    session.refresh(job)
    assert job.attempts == []


def test_a_grant_covers_only_appliances_of_its_provider_and_offer(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    add_appliance(session, cast.globex, "not-on-offer")
    own = add_appliance(session, cast.acme, "acme-dgx", gpus=0)
    offer(session, [own], name="pool-of-acme")
    grant(session, cast.acme, cast.globex, name="pool-of-acme", price=Decimal(0))
    views = read_snapshot(session, cast.acme.id, now=NOON).appliances
    assert {view.id for view in views if view.rental and view.rental.is_open} == {dgx.id}
    assert [view.id for view in views if view.rental is None] == [own.id]


@pytest.mark.usefixtures("dgx")
def test_the_provider_sees_what_its_customers_have_as_occupied(
    session: Session, cast: Cast
) -> None:
    placed(session, rent(session, cast, "secret project", gpus=6))
    own = submit(session, cast.charlie, "own", gpus=4)
    dispatch(session, now=NOON)
    [view] = read_snapshot(session, cast.globex.id, now=NOON).appliances
    [running, *_] = view.running
    session.refresh(own)
    assert "globex-dgx: 2 of 8 GPUs free, 4 requested" in own.message
    assert (running.is_foreign, running.name, running.job_id) == (
        True,
        "",
        session.scalars(select(Attempt.id).where(Attempt.contract_id.is_not(None))).one(),
    )
    [capacity] = list_capacities(session, scope_of(cast.charlie)).items
    assert capacity.free_gpus == 2


@pytest.mark.usefixtures("dgx")
def test_two_tenants_share_a_rented_appliance_without_sharing_gpus(
    session: Session, cast: Cast
) -> None:
    own = placed(session, submit(session, cast.charlie, "own", gpus=3))
    rented = placed(session, rent(session, cast, gpus=5))
    assert sorted([*own.gpu_uuids, *rented.gpu_uuids]) == [
        gpu_uuid("globex-dgx", index) for index in range(8)
    ]


def test_a_drained_or_reserved_appliance_gets_no_job_of_a_customer(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    dgx.drained_at = NOON
    session.flush()
    job = rent(session, cast)
    dispatch(session, now=NOON)
    session.refresh(job)
    assert "offer pool: drained, accepts no new jobs" in job.message
    dgx.drained_at = None
    session.add(
        Reservation(
            tenant_id=cast.globex.id,
            name="secret maintenance",
            appliance_ids=[dgx.id],
            schedule="30 12 2 3 *",
            time_zone="UTC",
            duration_seconds=3600,
            created_at=NOON,
        )
    )
    session.flush()
    dispatch(session, now=NOON)
    session.refresh(job)
    assert "offer pool: reserved by its provider from 2026-03-02 12:30 to 13:30" in job.message
    assert "secret" not in job.message
    assert placed(session, rent(session, cast, "short", time_limit_seconds=600)).contract_id


@pytest.mark.usefixtures("dgx")
def test_a_closed_grant_starts_nothing_and_stops_nothing(session: Session, cast: Cast) -> None:
    attempt = placed(session, rent(session, cast))
    session.execute(select(Grant)).scalar_one().is_open = False
    session.flush()
    waiting = rent(session, cast, "second")
    dispatch(session, now=NOON)
    session.refresh(waiting)
    assert "offer pool: lets no jobs start now" in waiting.message
    assert stop_unrented(session, now=NOON) == 0
    assert attempt.stop_reason is None


@pytest.mark.parametrize("is_removed", [True, False])
def test_the_end_of_a_contract_stops_its_jobs_which_are_queued_again(
    session: Session, cast: Cast, dgx: Appliance, *, is_removed: bool
) -> None:
    job = rent(session, cast)
    attempt = placed(session, job)
    report(session, attempt, ObservedState.RUNNING)
    row = session.execute(select(Grant)).scalar_one()
    row.ends_at = NOON + HOUR
    session.flush()
    assert stop_unrented(session, now=NOON) == 0
    if is_removed:
        session.delete(row)
    session.flush()
    session.refresh(dgx)
    before = dgx.desired_generation
    later = NOON if is_removed else NOON + HOUR
    assert [stop_unrented(session, now=later) for _ in range(2)] == [1, 0]
    session.refresh(attempt)
    session.refresh(dgx)
    assert attempt.stop_reason is Reason.CONTRACT_ENDED
    assert dgx.desired_generation == before + 1
    report(session, attempt, ObservedState.STOPPED)
    assert (attempt.state, attempt.reason) == (AttemptState.STOPPED, Reason.CONTRACT_ENDED)
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.CONTRACT_ENDED)
    events = [entry.message for entry in job_events(session, scope_of(cast.alice), job.id)]
    assert "Stopping to move: the contract about pool has ended." in events
    dispatch(session, now=later)
    session.refresh(job)
    assert job.state is JobState.QUEUED


@pytest.mark.usefixtures("dgx")
def test_what_a_customer_still_has_stays_occupied_after_the_grant_is_gone(
    session: Session, cast: Cast
) -> None:
    placed(session, rent(session, cast, gpus=8))
    session.delete(session.execute(select(Grant)).scalar_one())
    session.flush()
    own = submit(session, cast.charlie, "own", gpus=1)
    dispatch(session, now=NOON)
    session.refresh(own)
    assert "globex-dgx: 0 of 8 GPUs free, 1 requested" in own.message
    snapshot = read_snapshot(session, cast.acme.id, now=NOON)
    [view] = snapshot.appliances
    assert view.rental is not None
    assert (view.name, view.rental.is_open) == ("a rented appliance", False)


@pytest.mark.usefixtures("dgx")
def test_rented_gpus_count_towards_the_caps_of_the_customer_alone(
    session: Session, cast: Cast
) -> None:
    placed(session, rent(session, cast, gpus=4))
    customer = read_snapshot(session, cast.acme.id, now=NOON)
    provider = read_snapshot(session, cast.globex.id, now=NOON)
    own = [
        [job.job_id for view in snapshot.appliances for job in view.running if not job.is_foreign]
        for snapshot in (customer, provider)
    ]
    assert [len(jobs) for jobs in own] == [1, 0]


def test_the_ledger_has_the_contract_in_corrections_too(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        row = add_appliance(session, cast.globex, "globex-dgx")
        offer(session, [row])
        grant(session, cast.acme, cast.globex)
        attempt = placed(session, rent(session, cast, gpus=2))
        report(session, attempt, ObservedState.RUNNING)
        ident = attempt.id
    record_usage(sessions, store, now=NOON + HOUR + timedelta(minutes=5))
    with transaction(sessions) as session:
        ended = session.get_one(Attempt, ident)
        report(session, ended, ObservedState.SUCCEEDED, exit_code=0)
    record_usage(sessions, store, now=NOON + 8 * HOUR)
    with transaction(sessions) as session:
        entries = session.scalars(select(UsageEntry).order_by(UsageEntry.revision)).all()
    assert [entry.contract_id for entry in entries] == ["pool-acme"] * len(entries)
    assert [entry.allocated_milliseconds > 0 for entry in entries[:2]] == [True, False]
    assert {entry.tenant_id for entry in entries} == {cast.acme.id}
    assert {entry.gpu_model for entry in entries} == {"NVIDIA H100 80GB HBM3"}


def test_an_appliance_with_a_customers_job_is_not_retired_and_the_job_not_named(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    placed(session, rent(session, cast, "secret project"))
    with pytest.raises(ConflictError) as refused:
        retire_idle_appliance(session, scope_of(cast.charlie), dgx.id, now=NOON)
    assert "rented job" in refused.value.message
    assert "secret" not in refused.value.message


def test_jobs_end_when_the_provider_is_removed(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    job = rent(session, cast)
    attempt = placed(session, job)
    assert lose_attempts_at(session, cast.acme.id, now=NOON) == 0
    assert lose_attempts_at(session, cast.globex.id, now=NOON) == 1
    session.refresh(attempt)
    session.refresh(job)
    assert (attempt.state, job.state) == (AttemptState.LOST, JobState.LOST)
    assert dgx.name not in job.message


def test_a_customer_gets_mig_slices_where_the_contract_allows_them(
    session: Session, cast: Cast
) -> None:
    cut = {**inventory("globex-dgx"), "partition_modes": ["mig"]}
    cut["gpus"] = mig_gpus("globex-dgx", 1, is_enabled=True)
    row = make_appliance(session, cast.globex, "globex-dgx", inventory=cut)
    policy = GPUPartitionPolicy(
        tenant_id=cast.globex.id, name="mig", mode=PartitionMode.MIG, created_at=NOON
    )
    session.add(policy)
    session.flush()
    offer(session, [row])
    grant(session, cast.acme, cast.globex, allows_slices=True)
    own = placed(session, submit(session, cast.charlie, "own", gpu_slice="3g.40gb"))
    attempt = placed(session, rent(session, cast, gpus=0, gpu_slice="3g.40gb"))
    assert attempt.contract_id == "pool-acme"
    assert {(at.gpu_slice or {})["start"] for at in (own, attempt)} == {0, 4}


@pytest.mark.parametrize("mode", [PartitionMode.MPS, PartitionMode.TIME_SLICING])
def test_a_customer_shares_no_gpu_by_a_mode_that_separates_less(
    session: Session, cast: Cast, mode: PartitionMode
) -> None:
    shared = {**inventory("globex-dgx", gpus=2), "partition_modes": ["mps", "time_slicing"]}
    row = make_appliance(session, cast.globex, "globex-dgx", inventory=shared)
    policy = GPUPartitionPolicy(
        tenant_id=cast.globex.id, name="shared", mode=mode, shares=4, created_at=NOON
    )
    session.add(policy)
    session.flush()
    offer(session, [row])
    grant(session, cast.acme, cast.globex, allows_slices=True)
    own = placed(session, submit(session, cast.charlie, "own", gpu_memory_bytes=20 * GIB))
    assert (own.gpu_slice or {})["share_milli"] == 250
    attempt = placed(session, rent(session, cast, gpus=0, gpu_memory_bytes=20 * GIB))
    assert attempt.gpu_slice is None
    assert set(attempt.gpu_uuids).isdisjoint(own.gpu_uuids)
    waiting = rent(session, cast, "second")
    dispatch(session, now=NOON)
    session.refresh(waiting)
    assert "offer pool: 0 of 2 GPUs free, 1 requested" in waiting.message


@pytest.mark.usefixtures("dgx")
def test_a_preview_shows_where_a_job_would_go(session: Session, cast: Cast) -> None:
    request = JobRequest(name="train", image="python:3.13", gpus=8, max_gpu_hour_price=10)
    preview = try_job(session, scope_of(cast.alice), request, now=NOON)
    assert preview.decision.reason.endswith("pool can run it for 2.50 an hour for each GPU.")


@pytest.mark.usefixtures("dgx")
def test_a_job_too_large_for_own_appliances_is_accepted_if_rented_ones_can_run_it(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "small", gpus=1)
    assert placed(session, rent(session, cast, gpus=8)).contract_id == "pool-acme"


def test_a_tenant_without_contracts_pays_two_statements(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "acme-dgx")
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    event.listen(sessions.kw["bind"], "before_cursor_execute", note)
    read_snapshot(session, cast.acme.id, now=NOON)
    event.remove(sessions.kw["bind"], "before_cursor_execute", note)
    # What it rents, and what of its own others have booked.
    rented = [text for text in statements if "grants" in text or "offered_appliances" in text]
    assert len(rented) == 2

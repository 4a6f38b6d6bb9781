"""Appliances fetch the data of the jobs that wait for them, in the order of the queue."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from datasets.models import ApplianceCache, DatasetVersion
from datasets.prefetches import PrefetchRequest, create_prefetch
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.restored import settle_restored
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.queue.pending import explain_job
from jobqueue.queue.stopping import stop_job
from jobqueue.services.autoscaling.instances import set_awake
from jobqueue.states import AttemptState, JobState, Reason
from protocol.datasets import CopyState, DatasetCopy, DatasetOrders
from protocol.job_spec import DatasetMount, JobKind
from tenants.models import Appliance
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import dispatch, submit
from tests.unit.jobqueue.dataset_builders import (
    TIB,
    add_dataset,
    add_stager,
    copy_of,
    report_copies,
)


@pytest.fixture
def version(session: Session, cast: Cast) -> DatasetVersion:
    """A version of 2 TiB, which takes hours to fetch."""
    [version] = add_dataset(session, cast.acme).versions
    return version


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    """An idle appliance that fetches datasets."""
    return add_stager(session, cast.acme, "dgx-01", gpus=8)


def reading(session: Session, cast: Cast, dataset: str = "imagenet", *, gpus: int = 8) -> Job:
    mounts = [DatasetMount(dataset=dataset, target="/data")]
    return submit(session, cast.bob, name=f"on-{dataset}", gpus=gpus, datasets=mounts)


def orders_of(session: Session, appliance: Appliance) -> DatasetOrders:
    return desired_state(session, appliance.id, box=BOX).datasets


def place(session: Session, *jobs: Job, minutes: int = 0) -> None:
    dispatch(session, now=NOON + timedelta(minutes=minutes))
    for job in jobs:
        session.refresh(job)


def attempt_of(session: Session, job: Job) -> Attempt:
    attempt = job.attempt
    assert attempt is not None
    session.refresh(attempt)
    return attempt


@pytest.mark.usefixtures("version")
def test_a_job_waits_for_its_data_while_another_one_gets_the_gpus(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    generation = dgx.desired_generation
    train, other = reading(session, cast), submit(session, cast.bob, name="other", gpus=8)
    place(session, train, other)

    assert (train.state, train.reason) == (JobState.QUEUED, Reason.WAITING_FOR_DATA)
    assert train.message.startswith("dgx-01 fetches its data: 0 of 2 TiB cached, about 5h 49m")
    assert other.state is JobState.STARTING
    attempt = attempt_of(session, train)
    assert (attempt.state, attempt.gpu_uuids) == (AttemptState.BOUND, [])
    [event] = session.scalars(select(JobEvent).where(JobEvent.reason == Reason.WAITING_FOR_DATA))
    assert event.job_id == train.id
    session.refresh(dgx)
    assert dgx.desired_generation > generation
    orders = orders_of(session, dgx)
    assert ([dataset.name for dataset in orders.prefetch], orders.awaited) == (["imagenet"], 1)
    explanation = explain_job(session, scope_of(cast.bob), train.id, now=NOON)
    assert explanation is not None
    assert explanation.data == "0 of 2 TiB cached"


def test_it_starts_once_its_data_is_there(
    session: Session, cast: Cast, version: DatasetVersion, dgx: Appliance
) -> None:
    train = reading(session, cast)
    place(session, train)
    since = attempt_of(session, train).placement["data_wait_since"]
    assert since == NOON.isoformat()
    report_copies(session, dgx, copy_of(version, cached_bytes=TIB))
    place(session, train, minutes=60)
    assert train.message.startswith("dgx-01 fetches its data: 1 of 2 TiB cached")
    assert attempt_of(session, train).placement["data_wait_since"] == since

    report_copies(session, dgx, copy_of(version))
    place(session, train, minutes=90)
    assert (train.state, train.reason) == (JobState.STARTING, Reason.NONE)
    assert len(attempt_of(session, train).gpu_uuids) == 8
    assert orders_of(session, dgx).awaited == 0


def test_the_rate_of_an_appliance_and_the_setting_decide(
    session: Session, cast: Cast, version: DatasetVersion, dgx: Appliance
) -> None:
    session.get_one(ApplianceCache, dgx.id).bytes_per_second = version.total_bytes // 3600
    train = reading(session, cast)
    place(session, train)
    assert "about 1h to fetch" in train.message
    patient = QueueSettings(longest_fetch_minutes=61)
    set_settings(session, scope_of(cast.alice), cast.acme.id, patient)
    place(session, train)
    assert train.state is JobState.STARTING


def test_a_failed_fetch_starts_the_job_which_reports_it(
    session: Session, cast: Cast, version: DatasetVersion, dgx: Appliance
) -> None:
    train = reading(session, cast)
    place(session, train)
    failed = DatasetCopy(version_id=version.id, state=CopyState.FAILED, message="403")
    report_copies(session, dgx, failed)
    place(session, train)
    assert train.state is JobState.STARTING


def test_the_first_of_the_queue_is_fetched_first_and_before_orders_by_hand(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    for name in ("zoo", "audio", "text", "maps"):
        add_dataset(session, cast.acme, name)
    session.get_one(ApplianceCache, dgx.id).cache_limit_bytes = 5 * TIB
    maps = add_dataset(session, cast.acme, "birds")
    create_prefetch(session, scope_of(cast.bob), maps.id, PrefetchRequest(version=1), now=NOON)
    jobs = [reading(session, cast, name) for name in ("zoo", "audio", "text")]
    place(session, *jobs)
    orders = orders_of(session, dgx)
    # A third version would take the place of the others.
    assert [dataset.name for dataset in orders.prefetch] == ["zoo", "audio", "birds"]
    assert orders.awaited == 2

    session.refresh(dgx)
    generation = dgx.desired_generation
    stop_job(session, scope_of(cast.bob), jobs[0].id, now=NOON)
    session.refresh(dgx)
    assert dgx.desired_generation > generation
    assert [dataset.name for dataset in orders_of(session, dgx).prefetch] == [
        "audio",
        "text",
        "birds",
    ]


@pytest.mark.usefixtures("version")
def test_an_appliance_that_never_reported_a_cache_starts_the_job_at_once(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    session.delete(session.get_one(ApplianceCache, dgx.id))
    train = reading(session, cast)
    place(session, train)
    assert train.state is JobState.STARTING


def test_a_gang_waits_bound_and_starts_as_a_whole(
    session: Session, cast: Cast, version: DatasetVersion, dgx: Appliance
) -> None:
    second = add_stager(session, cast.acme, "dgx-02", gpus=8)
    mounts = [DatasetMount(dataset="imagenet", target="/data")]
    first = submit(session, cast.bob, name="gang", gpus=8, nodes=2, datasets=mounts)
    place(session, first)
    members = session.scalars(select(Job).where(Job.array_id == first.id)).unique().all()
    attempts = [attempt_of(session, member) for member in members]
    assert {attempt.state for attempt in attempts} == {AttemptState.BOUND}
    assert {attempt.appliance_id for attempt in attempts} == {dgx.id, second.id}
    assert [orders_of(session, each).awaited for each in (dgx, second)] == [1, 1]

    report_copies(session, dgx, copy_of(version))
    place(session, *members)
    assert {member.reason for member in members} == {Reason.WAITING_FOR_DATA}
    report_copies(session, second, copy_of(version))
    place(session, *members)
    assert {member.state for member in members} == {JobState.STARTING}


@pytest.mark.usefixtures("version")
def test_an_instance_that_falls_asleep_and_a_restore_withdraw_the_data_at_once(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    mounts = [DatasetMount(dataset="imagenet", target="/data")]
    service = submit(session, cast.bob, gpus=8, datasets=mounts, kind=JobKind.SERVICE)
    place(session, service)
    session.refresh(dgx)
    generation = dgx.desired_generation
    assert orders_of(session, dgx).awaited == 1
    set_awake(session, [service], 0, now=NOON)
    session.refresh(dgx)
    assert (service.state, orders_of(session, dgx).awaited) == (JobState.ASLEEP, 0)
    assert dgx.desired_generation > generation

    train = reading(session, cast)
    place(session, train)
    session.refresh(dgx)
    generation = dgx.desired_generation
    assert orders_of(session, dgx).awaited == 1
    settle_restored(session, data_at=NOON, now=NOON)
    session.expire_all()
    assert (train.state, orders_of(session, dgx).awaited) == (JobState.STOPPED, 0)
    assert dgx.desired_generation > generation


def test_a_gang_whose_data_is_there_waits_for_room_only_as_long_as_for_its_data(
    session: Session, cast: Cast, version: DatasetVersion, dgx: Appliance
) -> None:
    second = add_stager(session, cast.acme, "dgx-02", gpus=8)
    mounts = [DatasetMount(dataset="imagenet", target="/data")]
    first = submit(session, cast.bob, name="gang", gpus=8, nodes=2, datasets=mounts)
    others = [submit(session, cast.bob, name=name, gpus=8) for name in ("one", "two")]
    place(session, first, *others)
    assert {other.state for other in others} == {JobState.STARTING}
    members = session.scalars(select(Job).where(Job.array_id == first.id)).unique().all()
    for appliance in (dgx, second):
        report_copies(session, appliance, copy_of(version))
    others_of_site = [add_stager(session, cast.acme, name, gpus=8) for name in ("dgx-03", "dgx-04")]
    # 2 TiB take 5 h 49 min at 100 MiB/s.
    limit_minutes = 2 * 349 + 10
    for minutes in (60, limit_minutes - 5):
        place(session, *members, minutes=minutes)
        assert {member.state for member in members} == {JobState.QUEUED}
        # Its data is the last to be removed from the caches meanwhile.
        for appliance in (dgx, second):
            orders = orders_of(session, appliance)
            assert ([data.version_id for data in orders.prefetch], orders.awaited) == (
                [version.id],
                1,
            )
    place(session, *members, minutes=limit_minutes + 5)
    assert {member.state for member in members} == {JobState.STARTING}
    placed = {attempt_of(session, member).appliance_id for member in members}
    assert placed == {appliance.id for appliance in others_of_site}

"""Datasets of jobs: what a request names, what a job stores, and who uses a version."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from datasets.catalog import delete_version
from datasets.models import DatasetVersion, VersionState
from jobqueue.models import Job
from jobqueue.queue.resubmission import request_like, retry_job
from jobqueue.queue.schedule_runs import submit_due
from jobqueue.queue.schedules import ScheduleRequest, create_schedule
from jobqueue.queue.stopping import stop_job
from protocol.job_spec import DatasetMount, JobRequest, Mount
from protocol.notation import format_dataset, parse_dataset
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, submit
from tests.unit.jobqueue.dataset_builders import add_dataset, add_stager, add_version

DATA = DatasetMount(dataset="imagenet", target="/data")


@pytest.mark.parametrize("text", ["imagenet:/data", "imagenet@3:/data/train", "a@b@12:/x"])
def test_a_dataset_is_written_as_it_is_parsed(text: str) -> None:
    assert format_dataset(parse_dataset(text)) == text


@pytest.mark.parametrize("text", ["imagenet", ":/data", "imagenet:", "a@x:/d", "a@0:/d", "@1:/d"])
def test_another_notation_of_a_dataset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="enter NAME:TARGET or NAME@VERSION:TARGET"):
        parse_dataset(text)


def test_a_job_stores_the_newest_ready_version_at_its_submission(
    session: Session, cast: Cast
) -> None:
    dataset = add_dataset(session, cast.acme, versions=2)
    add_version(session, dataset, 3, state=VersionState.INDEXING)

    job = submit(session, cast.bob, datasets=[DATA])

    ready = session.scalars(select(DatasetVersion).where(DatasetVersion.number == 2)).one()
    assert job.datasets == [
        {
            "dataset": "imagenet",
            "target": "/data",
            "version": 2,
            "version_id": ready.id,
            "total_bytes": ready.total_bytes,
        }
    ]


def test_a_retry_and_a_copy_get_the_same_version_and_a_schedule_the_newest(
    session: Session, cast: Cast
) -> None:
    dataset = add_dataset(session, cast.acme)
    scope = scope_of(cast.bob)
    job = submit(session, cast.bob, datasets=[DATA])
    scheduled = JobRequest(name="nightly", image="a", datasets=[DATA])
    request = ScheduleRequest(name="nightly", schedule="0 * * * *", job=scheduled)
    create_schedule(session, scope, request, box=BOX, now=NOON)
    add_version(session, dataset, 2)

    assert request_like(job).datasets == [
        DatasetMount(dataset="imagenet", target="/data", version=1)
    ]
    retried = retry_job(session, scope, job.id, box=BOX, now=NOON)
    assert retried.datasets == job.datasets
    submit_due(session, box=BOX, now=NOON + timedelta(hours=1))
    nightly = session.scalars(select(Job).where(Job.name == "nightly")).unique().one()
    assert nightly.datasets[0]["version"] == 2


def test_members_of_a_gang_and_tasks_of_an_array_have_the_datasets(
    session: Session, cast: Cast
) -> None:
    add_dataset(session, cast.acme)
    for changes in ({"nodes": 2}, {"array": "0-1"}):
        first = submit(session, cast.bob, datasets=[DATA], **changes)
        jobs = session.scalars(select(Job).where(Job.array_id == first.id)).unique().all()
        assert [job.datasets for job in jobs] == [first.datasets] * 2


@pytest.mark.parametrize(
    ("mount", "problem"),
    [
        (DatasetMount(dataset="unknown", target="/data"), "There is no dataset 'unknown'"),
        (DatasetMount(dataset="imagenet", target="/data", version=9), "no version 9; the newest"),
        (DatasetMount(dataset="imagenet", target="/data", version=2), "still indexed"),
        (DatasetMount(dataset="imagenet", target="/data", version=3), "failed: no such bucket"),
        (DatasetMount(dataset="imagenet", target="data"), "not an absolute path"),
        (DatasetMount(dataset="imagenet", target="/data/../etc"), "not an absolute path"),
        (DatasetMount(dataset="imagenet", target="/"), "not an absolute path"),
    ],
)
def test_a_wrong_dataset_is_refused_with_the_reason(
    session: Session, cast: Cast, mount: DatasetMount, problem: str
) -> None:
    dataset = add_dataset(session, cast.acme)
    add_version(session, dataset, 2, state=VersionState.INDEXING)
    add_version(session, dataset, 3, state=VersionState.FAILED, message="no such bucket.")
    with pytest.raises(InvalidInputError) as refused:
        submit(session, cast.bob, datasets=[mount])
    assert problem in refused.value.errors["datasets"][0]


def test_targets_that_overlap_are_refused(session: Session, cast: Cast) -> None:
    add_dataset(session, cast.acme)
    inside = DatasetMount(dataset="imagenet", target="/data/images")
    with pytest.raises(InvalidInputError) as refused:
        submit(
            session,
            cast.bob,
            datasets=[DATA, inside],
            mounts=[Mount(source="/srv", target="/data/images")],
            outputs=["/data/out"],
        )
    assert sorted(refused.value.errors["datasets"]) == [
        "'/data' and '/data/images' overlap; use separate paths in the container.",
        "'/data' and '/data/out' overlap; use separate paths in the container.",
        "'/data/images' and '/data' overlap; use separate paths in the container.",
        "'/data/images' and '/data/images' overlap; use separate paths in the container.",
    ]


def test_another_tenants_dataset_is_unknown_by_name_and_by_id(session: Session, cast: Cast) -> None:
    foreign = add_dataset(session, cast.globex)
    for named in (foreign.name, foreign.id):
        with pytest.raises(InvalidInputError) as refused:
            submit(session, cast.bob, datasets=[DatasetMount(dataset=named, target="/data")])
        assert "There is no dataset" in refused.value.errors["datasets"][0]


def test_a_job_is_refused_where_no_appliance_fetches_datasets(session: Session, cast: Cast) -> None:
    add_dataset(session, cast.acme)
    add_appliance(session, cast.acme, "old-01")
    with pytest.raises(InvalidInputError) as refused:
        submit(session, cast.bob, datasets=[DATA])
    assert "datasets" in refused.value.errors
    add_stager(session, cast.acme, "dgx-01")
    assert submit(session, cast.bob, datasets=[DATA]).datasets


def test_a_version_is_deleted_only_after_the_jobs_that_read_it_have_ended(
    session: Session, cast: Cast
) -> None:
    first, second = add_dataset(session, cast.acme, versions=2).versions
    job = submit(session, cast.bob, datasets=[DATA])
    alice = scope_of(cast.alice)

    with pytest.raises(ConflictError, match="train"):
        delete_version(session, alice, second.id)
    delete_version(session, alice, first.id)
    stop_job(session, scope_of(cast.bob), job.id, now=NOON)
    delete_version(session, alice, second.id)

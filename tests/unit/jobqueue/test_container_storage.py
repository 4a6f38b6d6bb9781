"""Images on appliances: what a cleanup deletes, its policies, and cleanups that users start."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.storage.policies import CleanupPolicy, Verdict, plan_cleanup, policy_for, set_policies
from jobqueue.storage.service import read_storage, record_storage, start_cleanup
from protocol.storage import (
    CleanupResult,
    StoppedContainer,
    StorageReport,
    StoredImage,
    full_image_name,
)
from tenants.fleet.events import EventKind, list_events
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, start, submit

POLICY = CleanupPolicy(image_days=30, disk_percent=80, container_days=7)


def image(name: str, *, days: int = 0, is_in_use: bool = False, size_gib: int = 1) -> StoredImage:
    """An image that a job used so many days ago; none did with -1."""
    used_at_ns = 0 if days < 0 else to_ns(NOON - timedelta(days=days))
    return StoredImage(
        image_id=name,
        names=[f"acme/{name}:1"],
        size_bytes=size_gib * GIB,
        used_at_ns=used_at_ns,
        is_in_use=is_in_use,
    )


REPORT = StorageReport(
    images=[
        image("old", days=31),
        image("old-but-wanted", days=31),
        image("old-but-running", days=31, is_in_use=True),
        image("of-others", days=-1),
        image("month", days=20),
        image("week", days=7),
        image("today"),
    ],
    containers=[
        StoppedContainer(container_id="c1", finished_at_ns=to_ns(NOON - timedelta(days=8))),
        StoppedContainer(container_id="c2", finished_at_ns=to_ns(NOON - timedelta(days=6))),
    ],
    disk_total_bytes=100 * GIB,
    disk_free_bytes=50 * GIB,
)
WANTED = ["docker.io/acme/old-but-wanted:1"]


def test_old_images_of_jobs_are_deleted_unless_they_are_needed() -> None:
    plan = plan_cleanup(REPORT, POLICY, wanted=WANTED, now=NOON)
    assert plan.images == {
        "old": Verdict.AGE,
        "old-but-wanted": Verdict.QUEUED_JOB,
        "old-but-running": Verdict.IN_USE,
        "of-others": Verdict.NOT_OF_JOBS,
        "month": Verdict.RECENT,
        "week": Verdict.RECENT,
        "today": Verdict.RECENT,
    }
    assert set(plan.containers.values()) == {Verdict.NOT_OF_JOBS}
    assert (plan.order().images, plan.order().containers) == (["old"], [])


def test_what_belongs_to_no_job_is_deleted_only_if_the_policy_says_so() -> None:
    policy = replace(POLICY, includes_others=True)
    plan = plan_cleanup(REPORT, policy, wanted=WANTED, now=NOON)
    assert plan.order().images == ["old", "of-others"]
    assert plan.order().containers == ["c1"]


def test_a_full_disk_deletes_only_the_least_recently_used_images() -> None:
    # 82 of 100 GiB are used: the old one and one more bring it to 80 %.
    report = StorageReport(
        images=REPORT.images, disk_total_bytes=100 * GIB, disk_free_bytes=18 * GIB
    )
    plan = plan_cleanup(report, POLICY, wanted=WANTED, now=NOON)
    assert plan.order().images == ["old", "month"]
    assert plan.images["month"] is Verdict.DISK_USE


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3", "docker.io/library/python:3"),
        ("acme/train:1", "docker.io/acme/train:1"),
        ("localhost/a", "localhost/a:latest"),
        ("host:5000/a/b", "host:5000/a/b:latest"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ("[::1]/a:1@sha256:ab", "[::1]/a@sha256:ab"),
        ("acme/train:1@sha256:ab", "docker.io/acme/train@sha256:ab"),
    ],
)
def test_names_of_images_are_completed(name: str, full: str) -> None:
    assert full_image_name(name) == full


def test_policies_are_by_site_and_checked(session: Session, cast: Cast) -> None:
    alice, acme = scope_of(cast.alice), cast.acme.id
    assert policy_for(session, acme, "fra1") == (CleanupPolicy(), "")
    set_policies(session, alice, acme, {"fra1": POLICY})
    assert policy_for(session, acme, "fra1") == (POLICY, "fra1")
    assert policy_for(session, acme, "zrh1") == (CleanupPolicy(), "")
    with pytest.raises(InvalidInputError) as caught:
        set_policies(session, alice, acme, {"": CleanupPolicy(image_days=0, disk_percent=101)})
    assert set(caught.value.errors) == {"image_days", "disk_percent"}
    with pytest.raises(ForbiddenError):
        set_policies(session, scope_of(cast.bob), acme, {})
    with pytest.raises(NotFoundError):
        set_policies(session, scope_of(cast.charlie), acme, {})


def test_a_report_is_answered_by_the_policy_and_the_jobs_that_wait_there(
    session: Session, cast: Cast
) -> None:
    dgx = start(session, cast, gpus=8).appliance
    submit(session, cast.alice, "second", gpus=8, image="acme/old:1")
    dispatch(session, now=NOON)
    report = StorageReport(images=[image("old", days=31), image("older", days=40)])
    assert record_storage(session, dgx.id, report, now=NOON).images == ["older"]
    manual = {"": CleanupPolicy(is_automatic=False)}
    set_policies(session, scope_of(cast.alice), cast.acme.id, manual)
    assert record_storage(session, dgx.id, report, now=NOON).images == []


def test_a_user_starts_a_cleanup_and_sees_its_result(session: Session, cast: Cast) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    alice = scope_of(cast.alice)
    manual = {"": CleanupPolicy(is_automatic=False)}
    set_policies(session, alice, cast.acme.id, manual)
    with pytest.raises(ConflictError):
        start_cleanup(session, alice, dgx.id, now=NOON)
    report = StorageReport(images=[image("old", days=31)])
    record_storage(session, dgx.id, report, now=NOON)
    with pytest.raises(ForbiddenError):
        start_cleanup(session, scope_of(cast.bob), dgx.id, now=NOON)
    before = desired_state(session, dgx.id, box=BOX)
    for _ in range(2):
        start_cleanup(session, alice, dgx.id, now=NOON)
    session.refresh(dgx)
    after = desired_state(session, dgx.id, box=BOX)
    assert after.storage_generation == before.storage_generation + 1
    assert after.generation == before.generation + 1
    assert read_storage(session, alice, dgx.id, now=NOON).requested_at == NOON
    assert record_storage(session, dgx.id, report, now=NOON).images == ["old"]

    result = CleanupResult(finished_at_ns=to_ns(NOON), images=1, freed_bytes=GIB)
    record_storage(session, dgx.id, StorageReport(cleanup=result), now=NOON)
    session.flush()
    seen = read_storage(session, scope_of(cast.bob), dgx.id, now=NOON)
    assert (seen.requested_at, seen.cleanup) == (None, result)
    events = list_events(session, alice, dgx.id, kind=EventKind.CLEANED_UP)
    assert events.total == 1
    with pytest.raises(NotFoundError):
        read_storage(session, scope_of(cast.charlie), dgx.id, now=NOON)

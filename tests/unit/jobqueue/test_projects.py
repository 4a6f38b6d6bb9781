"""Projects: a tree in each tenant, its members, its guarantees, and the project of a job."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.jobs.end_notices import take_preemption_notices
from jobqueue.models import Job
from jobqueue.projects.models import Project, QuotaResource
from jobqueue.projects.quotas import QuotaRequest, quotas_of
from jobqueue.projects.service import (
    ProjectRequest,
    archive_project,
    change_project,
    create_project,
    get_project,
    list_members,
    list_projects,
    remove_member,
    restore_project,
    set_member,
    set_quotas,
    usable_projects,
)
from jobqueue.projects.tree import MAX_DEPTH
from jobqueue.queue.resubmission import retry_job
from jobqueue.queue.service import job_events
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState
from protocol.attempts import ObservedState
from tenants.auditing.recording import acting
from tenants.models import AuditEntry, Tenant
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, report, start, submit
from tests.unit.tenants.test_audit import ALICE


def add(session: Session, cast: Cast, name: str, parent: str = "", shares: int = 1) -> Project:
    request = ProjectRequest(name=name, parent=parent, shares=shares)
    return create_project(session, scope_of(cast.alice), request, now=NOON)


def guarantee(
    session: Session, cast: Cast, project: str, gpus: int, *, gpu_model: str = ""
) -> None:
    quota = QuotaRequest(resource=QuotaResource.GPUS, gpu_model=gpu_model, guaranteed=gpus)
    set_quotas(session, scope_of(cast.alice), project, [quota])


def test_projects_are_listed_as_a_tree_by_name(session: Session, cast: Cast) -> None:
    for name, parent in (("vision", ""), ("audio", ""), ("video", "vision"), ("images", "vision")):
        add(session, cast, name, parent)
    listed = list_projects(session, scope_of(cast.bob))
    assert [project.name for project in listed] == ["audio", "vision", "images", "video"]
    assert list_projects(session, scope_of(cast.charlie)) == []
    with pytest.raises(NotFoundError):
        get_project(session, scope_of(cast.charlie), listed[0].id)


def test_only_admins_change_projects(session: Session, cast: Cast) -> None:
    add(session, cast, "vision")
    with pytest.raises(ForbiddenError, match="may not change projects and quotas"):
        create_project(session, scope_of(cast.bob), ProjectRequest(name="mine"), now=NOON)
    with pytest.raises(ForbiddenError):
        set_quotas(session, scope_of(cast.bob), "vision", [])


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "vision", "shares": 0}, "shares"),
        ({"name": "vision", "parent": "nowhere"}, "parent"),
        ({"name": "vision", "description": "x" * 501}, "description"),
        ({"name": "vision", "budget_label": "x" * 101}, "budget_label"),
    ],
)
def test_an_invalid_field_is_named(
    session: Session, cast: Cast, request_fields: dict[str, object], field: str
) -> None:
    request = ProjectRequest(**request_fields)  # type: ignore[arg-type] # of any kind
    with pytest.raises(InvalidInputError) as caught:
        create_project(session, scope_of(cast.alice), request, now=NOON)
    assert caught.value.errors.keys() == {field}


def test_a_name_is_unique_in_its_tenant_whatever_its_case(session: Session, cast: Cast) -> None:
    add(session, cast, "vision")
    with pytest.raises(ConflictError, match="'vision' already"):
        add(session, cast, "Vision")
    other = create_project(session, scope_of(cast.charlie), ProjectRequest(name="vision"), now=NOON)
    assert other.tenant_id == cast.globex.id


def test_a_move_that_would_close_a_circle_is_refused_with_the_path(
    session: Session, cast: Cast
) -> None:
    for name, parent in (("a", ""), ("b", "a"), ("c", "b")):
        add(session, cast, name, parent)
    with pytest.raises(InvalidInputError, match="close the circle a > b > c > a") as caught:
        change_project(session, scope_of(cast.alice), "a", {"parent": "c"})
    assert caught.value.errors.keys() == {"parent"}
    with pytest.raises(InvalidInputError, match="a > a"):
        change_project(session, scope_of(cast.alice), "a", {"parent": "a"})
    moved = change_project(session, scope_of(cast.alice), "c", {"parent": "a", "shares": 3})
    assert (moved.parent_id, moved.shares) == (get_project(session, scope_of(cast.bob), "a").id, 3)


def test_the_tree_has_a_bounded_depth(session: Session, cast: Cast) -> None:
    for level in range(MAX_DEPTH):
        add(session, cast, f"level {level}", f"level {level - 1}" if level else "")
    with pytest.raises(InvalidInputError, match=f"at most {MAX_DEPTH}"):
        add(session, cast, "too deep", f"level {MAX_DEPTH - 1}")
    add(session, cast, "top")
    with pytest.raises(InvalidInputError, match="levels"):
        change_project(session, scope_of(cast.alice), "level 0", {"parent": "top"})


def test_a_change_voids_plans_of_placement(session: Session, cast: Cast) -> None:
    generation = select(Tenant.placement_generation).where(Tenant.id == cast.acme.id)
    before = session.scalars(generation).one()
    add(session, cast, "vision")
    assert session.scalars(generation).one() == before + 1


def test_words_of_gpu_models_differ_by_more_than_their_case(session: Session, cast: Cast) -> None:
    # In MySQL, two such rows would have the same key.
    add_appliance(session, cast.acme, "dgx-01")
    add(session, cast, "vision")
    guarantee(session, cast, "vision", 0, gpu_model="H100")
    [before] = quotas_of(session, get_project(session, scope_of(cast.alice), "vision").id)
    guarantee(session, cast, "vision", 0, gpu_model="h100")
    [after] = quotas_of(session, before.project_id)
    assert (after.id, after.gpu_model) == (before.id, "h100")
    twice = [QuotaRequest(resource=QuotaResource.GPUS, gpu_model=word) for word in ("H100", "h100")]
    with pytest.raises(InvalidInputError, match="There are two quotas of h100 GPUs"):
        set_quotas(session, scope_of(cast.alice), "vision", twice)


def test_a_project_with_jobs_or_projects_below_is_not_archived(
    session: Session, cast: Cast
) -> None:
    alice = scope_of(cast.alice)
    add(session, cast, "vision")
    add(session, cast, "video", "vision")
    with pytest.raises(ConflictError, match="video"):
        archive_project(session, alice, "vision", now=NOON)
    job = submit(session, cast.alice, project="video")
    with pytest.raises(ConflictError, match="1 job that"):
        archive_project(session, alice, "video", now=NOON)
    stop_job(session, alice, job.id, now=NOON)
    archive_project(session, alice, "video", now=NOON)
    assert [project.name for project in list_projects(session, alice)] == ["vision"]
    assert len(list_projects(session, alice, is_archived=True)) == 2
    with pytest.raises(InvalidInputError, match="'video' is archived"):
        submit(session, cast.alice, project="video")
    restore_project(session, alice, "video")
    assert submit(session, cast.alice, project="video").project_name == "video"


def test_a_job_belongs_to_the_default_project_of_its_user(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    assert submit(session, cast.bob).project_id is None
    add(session, cast, "vision")
    add(session, cast, "audio")
    assert set_member(session, alice, "vision", "bob@acme.example").is_default
    assert not set_member(session, alice, "audio", cast.bob.id, shares=2).is_default
    assert submit(session, cast.bob).project_name == "vision"
    assert submit(session, cast.bob, project="audio").project_name == "audio"
    set_member(session, alice, "audio", cast.bob.id, is_default=True)
    job = submit(session, cast.bob)
    assert job.project_name == "audio"
    stop_job(session, alice, job.id, now=NOON)
    remove_member(session, alice, "audio", "bob@acme.example")
    assert list_members(session, alice, "audio") == []
    with pytest.raises(NotFoundError):
        remove_member(session, alice, "audio", "bob@acme.example")
    with pytest.raises(InvalidInputError, match="not a member of 'audio'"):
        retry_job(session, scope_of(cast.bob), job.id, box=BOX, now=NOON)


def test_a_user_submits_only_to_their_projects_and_an_admin_to_any(
    session: Session, cast: Cast
) -> None:
    add(session, cast, "vision")
    add(session, cast, "audio")
    set_member(session, scope_of(cast.alice), "vision", cast.bob.id)
    with pytest.raises(InvalidInputError, match=r"not a member of 'audio'. Use one of: vision"):
        submit(session, cast.bob, project="audio")
    with pytest.raises(
        InvalidInputError, match=r"no project 'sound'. Use one of: vision"
    ) as caught:
        submit(session, cast.bob, project="sound")
    assert caught.value.errors.keys() == {"project"}
    assert submit(session, cast.alice, project="audio").project_name == "audio"
    assert len(usable_projects(session, scope_of(cast.alice))) == 2
    with pytest.raises(InvalidInputError, match=r"no project 'vision'. Ask an admin"):
        submit(session, cast.charlie, project="vision")


def test_a_member_is_a_user_of_the_tenant_with_at_least_one_share(
    session: Session, cast: Cast
) -> None:
    add(session, cast, "vision")
    with pytest.raises(InvalidInputError) as caught:
        set_member(session, scope_of(cast.alice), "vision", cast.charlie.email, shares=0)
    assert caught.value.errors.keys() == {"user", "shares"}


def test_tasks_of_an_array_belong_to_its_project(session: Session, cast: Cast) -> None:
    project = add(session, cast, "vision")
    submit(session, cast.alice, array="0-4", project="vision")
    assert set(session.scalars(select(Job.project_id))) == {project.id}


def test_guarantees_above_the_hardware_are_refused_with_the_nearest_that_works(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    add(session, cast, "vision")
    add(session, cast, "audio")
    guarantee(session, cast, "vision", 5)
    with pytest.raises(InvalidInputError, match=r"has 8 GPUs.*guaranteed 5 GPUs; enter at most 3"):
        guarantee(session, cast, "audio", 4)
    guarantee(session, cast, "audio", 3, gpu_model="H100")
    with pytest.raises(InvalidInputError, match="has 0 A100 GPUs; enter at most 0") as caught:
        guarantee(session, cast, "audio", 1, gpu_model="A100")
    assert caught.value.errors.keys() == {"quotas.0.guaranteed"}
    memory = QuotaRequest(resource=QuotaResource.MEMORY_BYTES, guaranteed=600 * GIB)
    with pytest.raises(InvalidInputError, match="has 512 GiB of memory"):
        set_quotas(session, scope_of(cast.alice), "audio", [memory])


def test_guarantees_fit_into_that_of_the_project_above(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    for name, parent in (("vision", ""), ("group", "vision"), ("video", "group"), ("3d", "group")):
        add(session, cast, name, parent)
    guarantee(session, cast, "vision", 4)
    guarantee(session, cast, "video", 3)
    with pytest.raises(InvalidInputError, match=r"'vision' is guaranteed 4 GPUs.*enter at most 1"):
        guarantee(session, cast, "3d", 2)
    with pytest.raises(InvalidInputError, match="guaranteed 3 GPUs; enter at least that"):
        guarantee(session, cast, "vision", 2)
    add(session, cast, "small")
    guarantee(session, cast, "small", 2)
    with pytest.raises(InvalidInputError, match="'small' is guaranteed 2 GPUs"):
        change_project(session, scope_of(cast.alice), "video", {"parent": "small"})


@pytest.mark.parametrize(
    ("quotas", "fields"),
    [
        ([{"maximum": 1, "guaranteed": 2}], {"quotas.0.maximum"}),
        ([{"guaranteed": -1}], {"quotas.0.guaranteed"}),
        ([{"borrowing_limit": -1}], {"quotas.0.borrowing_limit"}),
        ([{}, {"guaranteed": 1}], {"quotas.1"}),
        ([{"resource": QuotaResource.CPUS, "gpu_model": "H100"}], {"quotas.0.gpu_model"}),
    ],
)
def test_an_invalid_quota_is_named_by_its_place(
    session: Session, cast: Cast, quotas: list[dict[str, object]], fields: set[str]
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    project = add(session, cast, "vision")
    requests = [QuotaRequest(**({"resource": QuotaResource.GPUS} | each)) for each in quotas]  # type: ignore[arg-type] # of any kind
    with pytest.raises(InvalidInputError) as caught:
        set_quotas(session, scope_of(cast.alice), "vision", requests)
    assert caught.value.errors.keys() == fields
    assert quotas_of(session, project.id) == []


def test_replaced_quotas_are_in_the_audit_log(
    session: Session, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    add(session, cast, "vision")
    session.commit()
    alice = scope_of(cast.alice)
    with acting(sessions, ALICE, clock=clock).begin() as acted:
        set_quotas(acted, alice, "vision", [QuotaRequest(resource=QuotaResource.GPUS)])
    with acting(sessions, ALICE, clock=clock).begin() as acted:
        quotas = [QuotaRequest(resource=QuotaResource.GPUS, guaranteed=2)]
        set_quotas(acted, alice, "vision", quotas)
    with acting(sessions, ALICE, clock=clock).begin() as acted:
        archive_project(acted, alice, "vision", now=NOON)
    with sessions() as reading:
        entries = reading.scalars(select(AuditEntry).order_by(AuditEntry.number)).all()
    assert [(entry.action, entry.target_name) for entry in entries] == [
        ("project_quota.created", "vision"),
        ("project_quota.changed", "vision"),
        ("project_quota.deleted", "vision"),
        ("project.archived", "vision"),
    ]
    assert (entries[1].before, entries[1].after) == ({"guaranteed": 0}, {"guaranteed": 2})


def test_a_guarantee_is_reclaimed_and_the_victim_is_told(session: Session, cast: Cast) -> None:
    add(session, cast, "vision")
    add(session, cast, "audio")
    borrower = start(session, cast, gpus=8, project="audio", is_preemptible=True, notify=["email"])
    guarantee(session, cast, "vision", 4)
    wanted = submit(session, cast.alice, "train", gpus=4, project="vision")
    dispatch(session, now=NOON)
    session.refresh(borrower)
    assert borrower.preemption == {
        "rule": "reclaim",
        "job_id": wanted.id,
        "job_name": "train",
        "project": "vision",
        "guarantor": "vision",
    }
    # A job that borrows is submitted earlier, but what is reclaimed is not for it.
    thief = submit(session, cast.alice, "thief", gpus=8, project="audio", priority=100)
    dispatch(session, now=NOON)
    report(session, borrower, ObservedState.STOPPED)
    dispatch(session, now=NOON + timedelta(minutes=2))
    for job in (wanted, thief):
        session.refresh(job)
    assert (wanted.state, thief.state) == (JobState.STARTING, JobState.QUEUED)
    history = job_events(session, scope_of(cast.bob), borrower.job_id)
    [message] = [event.message for event in history if "Lost since" in event.message]
    assert "for job 'train' of project 'vision', which the guarantee of 'vision' covers" in message
    assert "1m of run time, 0.1 GPU-hours" in message
    [notice] = take_preemption_notices(session, now=NOON + timedelta(minutes=2))
    assert (notice.address, notice.subject) == ("alice@acme.example", "Job train was preempted")
    assert "0.1 GPU-hours" in notice.text
    assert take_preemption_notices(session, now=NOON + timedelta(minutes=2)) == []

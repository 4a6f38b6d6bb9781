"""Reservations: who may start where and when, what is refused, and the nearest free time."""

# ruff: noqa: ANN401 - builders pass any field on

import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError
from jobqueue.models import Job
from jobqueue.placement.decisions import Action, Decision
from jobqueue.placement.explanation import explain_jobs
from jobqueue.placement.views import JobView, ReservationView, RunningJob, Snapshot
from jobqueue.projects.models import Project
from jobqueue.projects.service import archive_project, restore_project
from jobqueue.queue.pending import explain_job
from jobqueue.reservations.checks import ReservationRequest, checked
from jobqueue.reservations.models import Reservation
from jobqueue.reservations.periods import TakenTimes
from jobqueue.reservations.service import create_reservation, delete_reservation, update_reservation
from jobqueue.reservations.views import reservation_views
from jobqueue.states import JobState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, appliance, dispatch, gpu_uuid, plan, submit
from tests.unit.jobqueue.builders import job as waiting_job

HOUR = timedelta(hours=1)
# Of the project vision, from two to four o'clock.
RESERVED = ReservationView(
    name="Nightly",
    project="vision",
    project_ids=frozenset({"vision", "vision-lab"}),
    appliance_ids=["dgx-01"],
    gpus=None,
    periods=[(NOON + 2 * HOUR, NOON + 4 * HOUR)],
)


def decide(job: JobView, reservation: ReservationView = RESERVED, **changes: Any) -> Decision:
    fields: dict[str, Any] = {"appliances": [appliance("dgx-01")], "now": NOON} | changes
    [decision] = plan(Snapshot(jobs=[job], reservations=[reservation], **fields))
    return decision


@pytest.mark.parametrize(
    ("hours", "project_id", "action"),
    [
        (2, None, Action.ASSIGN),  # it ends when the reservation begins
        (3, None, Action.BIND),
        (None, None, Action.BIND),
        (3, "speech", Action.BIND),
        (3, "vision", Action.ASSIGN),
        (None, "vision-lab", Action.ASSIGN),  # a project below
    ],
)
def test_a_job_of_others_starts_only_if_it_ends_before(
    hours: int | None, project_id: str | None, action: Action
) -> None:
    limit = None if hours is None else hours * HOUR
    job = waiting_job("a", gpus=1, time_limit=limit, project_id=project_id)
    assert decide(job).action is action


def test_the_rejection_says_for_whom_and_until_when() -> None:
    [rejection] = decide(waiting_job("a", gpus=1, time_limit=3 * HOUR)).rejections
    assert rejection.code == "reserved"
    assert str(rejection) == (
        "dgx-01: reserved for project vision from 2026-03-02 14:00 to 16:00 UTC; "
        "the job's limit ends at 2026-03-02 15:00 UTC"
    )


@pytest.mark.parametrize(("gpus", "action"), [(2, Action.ASSIGN), (3, Action.BIND)])
def test_others_may_use_the_gpus_that_are_not_reserved(gpus: int, action: Action) -> None:
    # Of eight GPUs, four are reserved; a job of others has two for ever, and one two until one.
    endless = RunningJob(job_id="r", gpu_uuids=[gpu_uuid("dgx-01", at) for at in (0, 1)])
    own = RunningJob(
        job_id="own",
        gpu_uuids=[gpu_uuid("dgx-01", 2)],
        project_id="vision",
        ends_at=NOON + 9 * HOUR,
    )
    short = RunningJob(job_id="s", gpu_uuids=[gpu_uuid("dgx-01", 3)], ends_at=NOON + HOUR)
    some_gpus = ReservationView(
        **{name: getattr(RESERVED, name) for name in RESERVED.__dataclass_fields__} | {"gpus": 4}
    )
    job = waiting_job("a", gpus=gpus)
    views = [appliance("dgx-01", running=[endless, own, short])]
    assert decide(job, some_gpus, appliances=views).action is action


@pytest.mark.parametrize(("gpus", "action"), [(2, Action.ASSIGN), (3, Action.BIND)])
def test_what_several_projects_reserved_at_once_adds_up(gpus: int, action: Action) -> None:
    # Of eight GPUs, vision has three and speech three, of which it uses one: two are left.
    fields = {name: getattr(RESERVED, name) for name in RESERVED.__dataclass_fields__}
    speech = {"project": "speech", "project_ids": frozenset({"speech"}), "gpus": 3}
    vision = ReservationView(**fields | {"gpus": 3})
    running = RunningJob(job_id="s", gpu_uuids=[gpu_uuid("dgx-01", 0)], project_id="speech")
    snapshot = Snapshot(
        now=NOON,
        jobs=[waiting_job("a", gpus=gpus)],
        appliances=[appliance("dgx-01", running=[running])],
        reservations=[vision, ReservationView(**fields | speech)],
    )
    [decision] = plan(snapshot)
    assert decision.action is action


def test_the_expected_start_is_the_end_of_the_reservation() -> None:
    job = waiting_job("a", gpus=1, time_limit=3 * HOUR)
    snapshot = Snapshot(
        now=NOON, appliances=[appliance("dgx-01")], jobs=[job], reservations=[RESERVED]
    )
    assert explain_jobs(snapshot, ["a"])["a"].expected_start_at == NOON + 4 * HOUR


@pytest.fixture
def project(session: Session, cast: Cast) -> Project:
    add_appliance(session, cast.acme, "dgx-01")
    row = Project(tenant_id=cast.acme.id, name="vision", created_at=NOON)
    session.add(row)
    session.flush()
    return row


def wanted(**changes: Any) -> ReservationRequest:
    """Every night from ten, for eight hours."""
    fields: dict[str, Any] = {
        "name": "Nightly",
        "project_id": "vision",
        "appliance_ids": ["dgx-01"],
        "schedule": "0 22 * * *",
        "duration_seconds": 8 * 3600,
    }
    return ReservationRequest(**(fields | changes))


def create(session: Session, cast: Cast, **changes: Any) -> Reservation:
    return create_reservation(session, scope_of(cast.alice), wanted(**changes), now=NOON)


def errors_of(session: Session, cast: Cast, **changes: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as caught:
        create(session, cast, **changes)
    return dict(caught.value.errors)


def test_placement_follows_a_reservation_until_it_is_deleted(
    session: Session, cast: Cast, project: Project
) -> None:
    reservation = create(session, cast, schedule="2026-03-02T13:00", duration_seconds=3600)
    lab = Project(tenant_id=cast.acme.id, name="lab", parent_id=project.id, created_at=NOON)
    session.add(lab)
    session.flush()
    [view] = reservation_views(session, cast.acme.id, now=NOON)
    assert view.project_ids == {project.id, lab.id}
    assert view.periods == ((NOON + HOUR, NOON + 2 * HOUR),)
    job = submit(session, cast.bob, gpus=1)
    dispatch(session, now=NOON)
    explanation = explain_job(session, scope_of(cast.bob), job.id, now=NOON)
    assert explanation is not None
    assert "the job has no time limit" in str(explanation.rejections[0])
    delete_reservation(session, scope_of(cast.alice), reservation.id, now=NOON)
    dispatch(session, now=NOON)
    assert session.get_one(Job, job.id).state is JobState.STARTING


def test_a_reservation_of_an_archived_project_keeps_nothing(
    session: Session, cast: Cast, project: Project
) -> None:
    create(session, cast)
    archive_project(session, scope_of(cast.alice), "vision", now=NOON)
    assert not reservation_views(session, cast.acme.id, now=NOON)
    restore_project(session, scope_of(cast.alice), project.id)
    assert len(reservation_views(session, cast.acme.id, now=NOON)) == 1


@pytest.mark.usefixtures("project")
def test_an_overlap_is_refused_with_the_nearest_free_time(session: Session, cast: Cast) -> None:
    nightly = create(session, cast)
    # From four to eight in the morning: two hours later it is free.
    errors = errors_of(
        session, cast, name="Morning", schedule="2026-03-03T04:00", duration_seconds=4 * 3600
    )
    assert errors["schedule"] == [
        (
            "'Nightly' has it from 2026-03-02 22:00 to 2026-03-03 06:00 UTC. "
            "The nearest free time is from 2026-03-03 06:00 to 10:00 UTC."
        )
    ]
    errors = errors_of(
        session, cast, name="Daily", schedule="0 5 * * *", duration_seconds=17 * 3600
    )
    assert errors["schedule"][0].endswith("No other time is free.")
    scope = scope_of(cast.alice)
    longer = wanted(duration_seconds=9 * 3600)
    assert (
        update_reservation(session, scope, nightly.id, longer, now=NOON).duration_seconds == 32400
    )


@pytest.mark.usefixtures("project")
def test_parts_of_an_appliance_may_be_reserved_at_the_same_time(
    session: Session, cast: Cast
) -> None:
    create(session, cast, gpus=4)
    create(session, cast, name="Other half", gpus=4)
    errors = errors_of(session, cast, name="Too much", gpus=1)
    assert set(errors) == {"schedule"}


@pytest.mark.usefixtures("project")
def test_every_error_is_shown_at_once(session: Session, cast: Cast) -> None:
    errors = errors_of(
        session,
        cast,
        name=" ",
        project_id="speech",
        appliance_ids=["dgx-01", "dgx-99"],
        gpus=9,
        schedule="at night",
        duration_seconds=10**18,
        time_zone="Mars",
    )
    assert set(errors) == {
        *("name", "project_id", "appliance_ids", "gpus"),
        *("schedule", "duration_seconds", "time_zone"),
    }
    assert errors["gpus"] == ["dgx-01 has 8 GPUs, 9 requested."]
    past = errors_of(session, cast, schedule="2026-03-01T00:00")
    assert past == {"schedule": ["It has no time in the future."]}
    often = errors_of(session, cast, schedule="@hourly")
    assert "begins again before it ends" in often["schedule"][0]


@pytest.mark.usefixtures("project")
def test_a_member_may_not_reserve_nor_another_tenant(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        create_reservation(session, scope_of(cast.bob), wanted(), now=NOON)
    with pytest.raises(InvalidInputError) as caught:
        create_reservation(session, scope_of(cast.charlie), wanted(), now=NOON)
    assert set(caught.value.errors) == {"project_id", "appliance_ids"}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"duration_seconds": -(10**30)}, "duration_seconds"),
        ({"schedule": "9999-12-31T23:00"}, "schedule"),
        ({"schedule": "R/9999-12-31T00:00/P1D"}, "schedule"),
        # 90 days have 12,960 times of ten minutes.
        ({"schedule": "*/10 * * * *", "duration_seconds": 300}, "schedule"),
    ],
)
def test_a_reservation_out_of_any_range_is_refused(
    session: Session, cast: Cast, changes: dict[str, Any], field: str
) -> None:
    assert set(errors_of(session, cast, **changes)) == {field}


def test_the_nearest_free_time_among_many_is_found_in_little_memory() -> None:
    # Every three hours for a year, an hour each; the other one wants the same hours.
    taken = [(NOON + 3 * number * HOUR, NOON + (3 * number + 1) * HOUR) for number in range(3000)]
    wanted_periods = taken[:1000]
    tracemalloc.start()
    times = TakenTimes((period, "often") for period in taken)
    free = times.nearest_free(wanted_periods, now=NOON, until=NOON + 10_000 * HOUR)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert free == (NOON + HOUR, NOON + 2 * HOUR)
    assert peak_bytes < 64 * 2**20


def test_comparing_many_times_is_bounded_and_blocks_nobody(
    session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    scope = scope_of(cast.alice)
    fields: dict[str, Any] = {"project_id": None, "duration_seconds": 600}
    hourly = wanted(name="Hourly", schedule="0 * * * *", **fields)
    with monkeypatch.context() as context:
        context.setattr("jobqueue.reservations.checks.MAX_BEGINS", 9000)
        create_reservation(session, scope, hourly, now=NOON)
        context.setattr("jobqueue.reservations.bookings.MAX_COMPARED", 100)
        later = wanted(name="Later", schedule="30 2 * * *", **fields)
        with pytest.raises(InvalidInputError, match="begin more than 100 times"):
            create_reservation(session, scope, later, now=NOON)

    def save_another(*arguments: Any, **options: Any) -> Any:
        answer = checked(*arguments, **options)
        add_reservation(session, cast, "Meanwhile")
        return answer

    monkeypatch.setattr("jobqueue.reservations.service.checked", save_another)
    with pytest.raises(ConflictError, match="at the same time"):
        create_reservation(session, scope, later, now=NOON)


def add_reservation(session: Session, cast: Cast, name: str) -> None:
    """Add a reservation as another process would, without checks."""
    session.add(
        Reservation(
            tenant_id=cast.acme.id,
            name=name,
            appliance_ids=["x"],
            schedule="0 5 * * *",
            time_zone="UTC",
            duration_seconds=600,
            created_at=NOON,
        )
    )
    session.flush()

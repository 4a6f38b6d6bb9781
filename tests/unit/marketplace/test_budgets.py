"""Budgets: what they count, warnings once each, holds of new jobs, stops after a grace."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.holds.models import JobHold
from jobqueue.models import Attempt, Job
from jobqueue.projects.service import ProjectRequest, create_project, set_member
from jobqueue.queue.service import job_events
from jobqueue.states import JobState, Reason
from marketplace.budgets.evaluation import evaluate_budgets
from marketplace.budgets.models import Budget, BudgetAction, BudgetTarget
from marketplace.budgets.requests import BudgetRequest
from marketplace.budgets.service import (
    change_budget,
    create_budget,
    delete_budget,
    get_budget,
    list_budgets,
)
from marketplace.budgets.spending import Spending, month_of
from marketplace.budgets.tasks import BudgetTasks
from marketplace.charges.models import LineKind
from protocol.attempts import ObservedState
from tests.cast import BOX, NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, start, submit
from tests.unit.marketplace.conftest import MakeTasks
from tests.unit.marketplace.cost_builders import MARCH, add_budget, add_line

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
APRIL = MARCH + timedelta(days=31)


@pytest.fixture
def tasks(make_tasks: MakeTasks, tmp_path: Path) -> BudgetTasks:
    return make_tasks(
        data_dir=tmp_path, smtp_url="smtp://mail.example", public_url="https://vedette.example"
    )


def messages(sessions: SessionFactory) -> list[tuple[str, str]]:
    """Whom the outbox writes to, and the subjects, oldest first."""
    with sessions() as session:
        rows = session.scalars(select(Notification).order_by(Notification.id))
        return [(row.address, row.payload["subject"]) for row in rows]


def test_a_month_is_that_of_the_calendar_in_utc() -> None:
    assert month_of(NOON).since == MARCH
    assert month_of(NOON).until == APRIL
    assert month_of(APRIL).since == APRIL


def test_each_level_is_reported_once_in_a_month_and_anew_in_the_next(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, tasks: BudgetTasks
) -> None:
    with sessions.begin() as session:
        add_budget(session, cast.alice, "100.00")
        add_line(session, cast.acme, "49.99")
    tasks.watch_budgets()
    assert messages(sessions) == []
    for amount in ("0.01", "5", "30", "20"):  # 50, 55, 85 and 105 %
        with sessions.begin() as session:
            add_line(session, cast.acme, amount)
        clock.advance(60)
        tasks.watch_budgets()
        tasks.watch_budgets()
    alice = cast.alice.email
    assert messages(sessions) == [
        (alice, "Acme: the budget of Acme is 50 % spent"),
        (alice, "Acme: the budget of Acme is 85 % spent"),
        (alice, "Acme: the budget of Acme is 105 % spent"),
    ]
    with sessions.begin() as session:
        add_line(session, cast.acme, "51", at=APRIL)
    clock.now = APRIL + HOUR
    tasks.watch_budgets()
    assert messages(sessions)[3:] == [(alice, "Acme: the budget of Acme is 51 % spent")]


def test_a_message_says_what_is_spent_what_comes_and_what_happens(
    sessions: SessionFactory, cast: Cast, tasks: BudgetTasks
) -> None:
    with sessions.begin() as session:
        add_budget(session, cast.alice, "1000", action=BudgetAction.STOP_JOBS, grace_seconds=7200)
        # 1,680 in 167 hours, of which 360 in March; 708 hours of it are left.
        add_line(session, cast.acme, "1320", at=NOON - timedelta(days=6, hours=23))
        add_line(session, cast.acme, "360", at=NOON - HOUR)
        add_line(session, cast.acme, "500", at=NOON - HOUR, kind=LineKind.CORRECTION)
    tasks.watch_budgets()
    with sessions() as session:
        text = session.scalars(select(Notification)).one().payload["text"]
        budget = session.scalars(select(Budget)).one()
    assert budget.forecast.quantize(Decimal("0.01")) == Decimal("7982.40")  # 860 + 1680 / 167 * 708
    assert text.startswith("EUR 860.00 of EUR 1,000.00 are spent in March 2026.")
    assert "At 100 % no new job with GPUs starts. Running ones stop 2h later." in text


def test_a_budget_of_a_project_counts_those_below_it_and_one_of_a_user_their_jobs(
    session: Session, cast: Cast
) -> None:
    alice = scope_of(cast.alice)
    parent = create_project(session, alice, ProjectRequest(name="vision"), now=NOON)
    child = create_project(
        session, alice, ProjectRequest(name="detectors", parent="vision"), now=NOON
    )
    other = create_project(session, alice, ProjectRequest(name="speech"), now=NOON)
    for project, user, amount in (
        (parent, cast.alice, "1"),
        (child, cast.bob, "2"),
        (other, cast.bob, "4"),
    ):
        add_line(session, cast.acme, amount, project_id=project.id, user_id=user.id)
    add_line(session, cast.acme, "-0.5", kind=LineKind.SERVICE_CREDIT)
    add_line(session, cast.globex, "100")
    add_line(session, cast.acme, "100", at=MARCH - HOUR)
    budgets = {
        "tenant": add_budget(session, cast.alice, "100"),
        "vision": add_budget(
            session, cast.alice, "100", target=BudgetTarget.PROJECT, target_id="vision"
        ),
        "bob": add_budget(
            session, cast.alice, "100", target=BudgetTarget.USER, target_id="Bob@acme.example"
        ),
    }
    evaluate_budgets(session, cast.acme.id, now=NOON)
    spent = {name: budget.spent for name, budget in budgets.items()}
    assert spent == {"tenant": Decimal("6.5"), "vision": Decimal(3), "bob": Decimal(6)}


@pytest.mark.usefixtures("own_price")
def test_what_runs_counts_before_it_has_lines(session: Session, cast: Cast) -> None:
    start(session, cast, gpus=2)  # since noon, at 2.50 for a GPU
    now = NOON + timedelta(minutes=90)
    assert Spending(session, cast.acme.id, now=now).of().amount == Decimal("7.5")


def test_a_spent_budget_refuses_and_holds_jobs_with_gpus_until_it_is_raised(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    waiting = submit(session, cast.alice, gpus=1)
    budget = add_budget(session, cast.alice, "10", action=BudgetAction.STOP_NEW_JOBS)
    add_line(session, cast.acme, "10")
    evaluate_budgets(session, cast.acme.id, now=NOON)
    reason = (
        "The budget of Acme for March 2026 is spent. Ask an admin for a higher one; "
        "the next one begins at 2026-04-01 00:00 UTC."
    )
    with pytest.raises(ConflictError) as caught:
        submit(session, cast.bob, gpus=1)
    assert (caught.value.message, caught.value.code) == (reason, "budget_spent")
    cpu_job = submit(session, cast.bob, "cpu")
    dispatch(session, now=NOON)
    session.refresh(waiting)
    session.refresh(cpu_job)
    assert cpu_job.state is JobState.STARTING
    assert (waiting.state, waiting.reason) == (JobState.QUEUED, Reason.WAITING_FOR_CAP)
    assert waiting.message == reason

    change_budget(
        session,
        scope_of(cast.alice),
        budget.id,
        BudgetRequest(target=BudgetTarget.TENANT, amount="20", action=BudgetAction.STOP_NEW_JOBS),
    )
    evaluate_budgets(session, cast.acme.id, now=NOON)
    dispatch(session, now=NOON)
    session.refresh(waiting)
    assert waiting.state is JobState.STARTING
    submit(session, cast.bob, gpus=1)


def test_the_hold_ends_with_the_month_and_with_the_budget(session: Session, cast: Cast) -> None:
    budget = add_budget(session, cast.alice, "10", action=BudgetAction.STOP_NEW_JOBS)
    add_line(session, cast.acme, "10")
    evaluate_budgets(session, cast.acme.id, now=NOON)
    assert session.scalars(select(JobHold.source_id)).all() == [budget.id]
    evaluate_budgets(session, cast.acme.id, now=APRIL)
    assert session.scalars(select(JobHold)).all() == []
    add_line(session, cast.acme, "10", at=APRIL)
    evaluate_budgets(session, cast.acme.id, now=APRIL + HOUR)
    delete_budget(session, scope_of(cast.alice), budget.id)
    assert session.scalars(select(JobHold)).all() == []


def test_a_project_that_spent_its_budget_holds_no_other_project(
    session: Session, cast: Cast
) -> None:
    alice = scope_of(cast.alice)
    create_project(session, alice, ProjectRequest(name="vision"), now=NOON)
    below = create_project(
        session, alice, ProjectRequest(name="detectors", parent="vision"), now=NOON
    )
    create_project(session, alice, ProjectRequest(name="speech"), now=NOON)
    set_member(session, alice, "detectors", cast.bob.email)
    add_appliance(session, cast.acme, "dgx-01")
    add_budget(
        session,
        cast.alice,
        "10",
        target=BudgetTarget.PROJECT,
        target_id="vision",
        action=BudgetAction.STOP_NEW_JOBS,
    )
    add_line(session, cast.acme, "11", project_id=below.id)
    evaluate_budgets(session, cast.acme.id, now=NOON)
    with pytest.raises(ConflictError, match="budget of the project vision"):
        submit(session, cast.bob, gpus=1, project="detectors")
    submit(session, cast.alice, gpus=1, project="speech")


def test_running_jobs_stop_after_the_grace_with_the_reason(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, tasks: BudgetTasks
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=1)
        report(session, attempt, ObservedState.RUNNING)
        on_cpu = submit(session, cast.alice, "cpu")
        dispatch(session, now=NOON)
        add_budget(session, cast.alice, "10", action=BudgetAction.STOP_JOBS, grace_seconds=3600)
        add_line(session, cast.acme, "10")
        attempt_id, appliance_id, cpu_id = attempt.id, attempt.appliance_id, on_cpu.id
    tasks.watch_budgets()
    clock.advance(3599)
    tasks.watch_budgets()
    with sessions.begin() as session:
        assert desired_state(session, appliance_id, box=BOX).stopping == []
    clock.advance(1)
    tasks.watch_budgets()
    tasks.watch_budgets()
    with sessions.begin() as session:
        assert desired_state(session, appliance_id, box=BOX).stopping == [attempt_id]
        stopping = session.get_one(Attempt, attempt_id)
        report(session, stopping, ObservedState.STOPPED, exit_code=143)
        job = stopping.job
        assert (job.state, job.reason) == (JobState.STOPPED, Reason.BUDGET_SPENT)
        assert session.get_one(Job, cpu_id).state is JobState.STARTING
        texts = [event.message for event in job_events(session, scope_of(cast.alice), job.id)]
        assert sum(text.startswith("Stopping: The budget of Acme") for text in texts) == 1


def test_a_change_at_the_same_time_wins_over_an_evaluation(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        budget = add_budget(session, cast.alice, "10", action=BudgetAction.STOP_NEW_JOBS)
        add_line(session, cast.acme, "10")
    with sessions() as evaluating:
        evaluating.get_one(Budget, budget.id)  # read before the change
        evaluating.rollback()
        evaluating.expire_on_commit = False
        stale = evaluating.get_one(Budget, budget.id)
        evaluating.commit()
        with sessions.begin() as session:
            request = BudgetRequest(target=BudgetTarget.TENANT, amount="1000")
            change_budget(session, scope_of(cast.alice), budget.id, request)
        assert stale.amount == 10
        assert evaluate_budgets(evaluating, cast.acme.id, now=NOON).warnings == []
        evaluating.commit()
    with sessions() as session:
        assert session.get_one(Budget, budget.id).level_percent == 0
        assert session.scalars(select(JobHold)).all() == []


def test_invalid_budgets_are_refused_with_all_errors(session: Session, cast: Cast) -> None:
    request = BudgetRequest(
        target=BudgetTarget.PROJECT,
        target_id="nothing",
        amount="ten",
        grace_seconds=-1,
        notify=["pager"],
    )
    with pytest.raises(InvalidInputError) as caught:
        create_budget(session, scope_of(cast.alice), request, now=NOON)
    assert caught.value.errors.keys() == {"target_id", "amount", "grace_seconds", "notify"}
    for amount in ("0", "-1", "NaN", "1e12", "0.000000001"):
        with pytest.raises(InvalidInputError):
            add_budget(session, cast.alice, amount)
    with pytest.raises(InvalidInputError, match="leave it empty"):
        add_budget(session, cast.alice, "1", target_id="x")


def test_a_target_has_one_budget(session: Session, cast: Cast) -> None:
    add_budget(session, cast.alice, "10")
    with pytest.raises(ConflictError, match="has a budget already"), session.begin_nested():
        add_budget(session, cast.alice, "20")


def test_only_admins_change_budgets_and_nobody_sees_those_of_others(
    session: Session, cast: Cast
) -> None:
    budget = add_budget(session, cast.alice, "10")
    with pytest.raises(ForbiddenError):
        list_budgets(session, scope_of(cast.bob))
    with pytest.raises(ForbiddenError):
        create_budget(session, scope_of(cast.olivia), _REQUEST, now=NOON)
    with pytest.raises(NotFoundError):
        get_budget(session, scope_of(cast.charlie), budget.id)
    assert list_budgets(session, scope_of(cast.charlie)).items == []
    with pytest.raises(InvalidInputError, match="no user"):
        add_budget(session, cast.charlie, "1", target=BudgetTarget.USER, target_id=cast.bob.id)


_REQUEST = BudgetRequest(target=BudgetTarget.TENANT, amount="1")

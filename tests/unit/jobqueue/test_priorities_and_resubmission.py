"""Priorities of waiting jobs change their place; ended jobs are submitted again."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.placement.views import PRIORITY_POINT
from jobqueue.queue.resubmission import retry_job, set_priority
from jobqueue.queue.service import job_events
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import start, submit


def test_a_waiting_job_moves_in_the_queue_and_its_history_says_who_moved_it(
    session: Session, cast: Cast
) -> None:
    job = submit(session, cast.bob)
    changed = set_priority(session, scope_of(cast.alice), job.id, 5, now=NOON)
    assert (changed.priority, changed.queue_at) == (5, NOON - 5 * PRIORITY_POINT)
    changed = set_priority(session, scope_of(cast.bob), job.id, -1, now=NOON)
    assert (changed.priority, changed.queue_at) == (-1, NOON + PRIORITY_POINT)
    messages = [event.message for event in job_events(session, scope_of(cast.bob), job.id)]
    assert ["from 0 to 5" in messages[-2], "from 5 to -1" in messages[-1]] == [True, True]


def test_only_admins_raise_priorities_or_change_those_of_others(
    session: Session, cast: Cast
) -> None:
    mine, theirs = submit(session, cast.bob), submit(session, cast.alice)
    for user, job, priority, error in (
        (cast.bob, mine, 1, ForbiddenError),
        (cast.bob, theirs, -1, ForbiddenError),
        (cast.alice, mine, 101, InvalidInputError),
        (cast.charlie, mine, 0, NotFoundError),
        (cast.olivia, mine, 0, ForbiddenError),
    ):
        with pytest.raises(error):
            set_priority(session, scope_of(user), job.id, priority, now=NOON)
    assert (mine.priority, theirs.priority) == (0, 0)


def test_a_job_that_started_keeps_its_priority(session: Session, cast: Cast) -> None:
    job = start(session, cast).job
    with pytest.raises(ConflictError) as caught:
        set_priority(session, scope_of(cast.alice), job.id, 1, now=NOON)
    assert caught.value.code == "job_started"


def test_a_job_is_submitted_again_as_it_is(session: Session, cast: Cast) -> None:
    secrets, labels = {"KEY": "x"}, {"project": "vision"}
    job = submit(session, cast.bob, env={"A": "1"}, secrets=secrets, labels=labels)
    retried_job = retry_job(session, scope_of(cast.bob), job.id, box=BOX, now=NOON)
    assert retried_job.id != job.id
    assert (retried_job.name, retried_job.env, retried_job.labels) == (
        job.name,
        job.env,
        job.labels,
    )
    assert retried_job.secret_names == ["KEY"]
    with pytest.raises(ForbiddenError):
        retry_job(session, scope_of(cast.alice), job.id, box=BOX, now=NOON)

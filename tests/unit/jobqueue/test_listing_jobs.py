"""The list of jobs: filters in SQL, so that none disappears."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from jobqueue.queue.service import list_jobs
from jobqueue.states import JobState
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit


def add_jobs(session: Session, cast: Cast) -> str:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    other = add_appliance(session, cast.acme, "dgx-02")
    submit(session, cast.alice, "alices", labels={"project": "vision", "x/y": "1"})
    submit(session, cast.bob, "bobs", appliance_id=dgx.id, labels={"project": "speech"})
    later = submit(session, cast.bob, "later", appliance_id=other.id)
    later.submitted_at += timedelta(days=1)
    dispatch(session, now=NOON)
    return dgx.id


@pytest.fixture
def listed(prefill: Callable[[Fill], str]) -> str:
    return prefill(add_jobs)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, {"alices", "bobs", "later"}),
        ({"user": "me"}, {"alices"}),
        ({"user": "bob@acme.example"}, {"bobs", "later"}),
        ({"user": "charlie@globex.example"}, set()),
        ({"label": "project"}, {"alices", "bobs"}),
        ({"label": "project=vision"}, {"alices"}),
        ({"label": "x/y=1"}, {"alices"}),
        ({"label": 'a"b\\=1'}, set()),
        ({"since": NOON + timedelta(hours=1)}, {"later"}),
        ({"until": NOON + timedelta(hours=1)}, {"alices", "bobs"}),
        ({"state": JobState.STARTING, "search": "bob"}, {"bobs"}),
    ],
)
@pytest.mark.usefixtures("listed")
def test_a_filter_lists_what_it_says(
    session: Session, cast: Cast, filters: dict[str, object], names: set[str]
) -> None:
    page = list_jobs(session, scope_of(cast.alice), **filters)  # type: ignore[arg-type] # of a table
    assert {job.name for job in page.items} == names
    assert page.total == len(names)


def test_the_jobs_of_an_appliance_are_those_that_were_placed_on_it(
    session: Session, cast: Cast, listed: str
) -> None:
    page = list_jobs(session, scope_of(cast.alice), appliance_id=listed)
    assert {job.name for job in page.items} == {"alices", "bobs"}
    assert list_jobs(session, scope_of(cast.charlie), appliance_id=listed).total == 0

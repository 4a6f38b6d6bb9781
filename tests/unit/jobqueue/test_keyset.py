"""Pages by cursors: every row once in either direction, while rows come and go."""

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.keyset import KeysetPage
from jobqueue.models import Job
from jobqueue.queue.service import list_jobs
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import submit

NAMES = ("b", "a", "b", "c", "a", "b", "d")


def add_jobs(session: Session, cast: Cast) -> str:
    for number, name in enumerate(NAMES):
        job = submit(session, cast.alice, name, gpus=number % 2)
        job.started_at = NOON.replace(minute=number % 3) if number % 4 else None
    return ""


@pytest.fixture(autouse=True)
def jobs(prefill: Callable[[Fill], str]) -> None:
    prefill(add_jobs)


def pages(
    session: Session, cast: Cast, sort: str, start: KeysetPage[Job] | None = None
) -> list[KeysetPage[Job]]:
    """Return the pages from one on, the first by default."""
    job_pages = [start or list_jobs(session, scope_of(cast.alice), sort=sort, page_size=2)]
    while job_pages[-1].next:
        after = job_pages[-1].next
        page = list_jobs(session, scope_of(cast.alice), sort=sort, after=after, page_size=2)
        job_pages.append(page)
    return job_pages


@pytest.mark.parametrize(
    "sort",
    ["", "name", "-name", "started_at", "-started_at", "gpus,-name", "-state,started_at,name"],
)
def test_pages_have_every_row_once_and_lead_back(session: Session, cast: Cast, sort: str) -> None:
    whole = list_jobs(session, scope_of(cast.alice), sort=sort, page_size=50)
    forward = pages(session, cast, sort)
    assert [job.id for page in forward for job in page.items] == [job.id for job in whole.items]
    assert {page.total for page in forward} == {len(NAMES)}
    page = forward[-1]
    for earlier in reversed(forward[:-1]):
        before = page.previous or ""
        page = list_jobs(session, scope_of(cast.alice), sort=sort, before=before, page_size=2)
        assert [job.id for job in page.items] == [job.id for job in earlier.items]
    assert page.previous is None


def test_a_page_stays_while_rows_are_added_and_deleted(session: Session, cast: Cast) -> None:
    first, second, *_ = pages(session, cast, "-submitted_at")
    expected = [job.id for job in second.items]
    submit(session, cast.alice, "new")
    session.delete(first.items[-1])
    session.flush()
    page = list_jobs(
        session, scope_of(cast.alice), sort="-submitted_at", after=first.next or "", page_size=2
    )
    assert [job.id for job in page.items] == expected


@pytest.mark.parametrize("cursor", ["x", "ab==", "WyJuYW1lIl0", "bnVsbA", "WyIiLCAxMl0", "é"])
def test_other_texts_are_no_cursors(session: Session, cast: Cast, cursor: str) -> None:
    for name in ("after", "before"):
        with pytest.raises(InvalidInputError) as failed:
            list_jobs(session, scope_of(cast.alice), **{name: cursor})  # type: ignore[arg-type]
        assert failed.value.errors.keys() == {name}
    of_another_sort = list_jobs(session, scope_of(cast.alice), sort="name", page_size=2).next
    with pytest.raises(InvalidInputError):
        list_jobs(session, scope_of(cast.alice), after=of_another_sort or "")

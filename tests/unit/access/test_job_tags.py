"""An appliance may tag samples only with jobs that were placed on it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sqlalchemy import event

from access.ingest.job_tags import FORGET_AFTER
from core.clock import to_ns
from core.db import SessionFactory
from core.ids import new_id
from tests.cast import Cast, FrozenClock
from tests.unit.access.conftest import AgentAPI
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit


@dataclass(frozen=True, slots=True)
class Site:
    """The agents of two appliances; the jobs that were placed on the second one, and wait."""

    stranger: AgentAPI
    owner: AgentAPI
    placed: str
    waiting: str


@pytest.fixture
def site(api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Iterator[Site]:
    """A job on dgx-02, and one that was not placed yet."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-02")
        placed = submit(session, cast.alice, "placed")
        dispatch(session, now=clock.now)
        session.refresh(placed)
        waiting = submit(session, cast.alice, "waiting")
        assert placed.attempt is not None
        assert placed.attempt.appliance.name == "dgx-02"
        ids = placed.id, waiting.id
    with AgentAPI.open(api.url, api.app, secret="vda_acme_dgx-02") as owner:
        yield Site(api, owner, *ids)


def wrong_lines(sender: AgentAPI, clock: FrozenClock, *jobs: str) -> list[int]:
    """Post a line for each job; return the numbers of the rejected ones."""
    now = to_ns(clock.now)
    response = sender.write("".join(f"gpu,gpu=0,job={job} used=1 {now}\n" for job in jobs))
    text = response.text if response.status_code != 204 else ""
    return [number for number in range(1, len(jobs) + 1) if f"line {number}:" in text]


def test_the_job_of_another_appliance_is_rejected(site: Site, clock: FrozenClock) -> None:
    jobs = (site.placed, site.waiting, new_id(), "nightly")
    assert wrong_lines(site.stranger, clock, *jobs) == [1, 2]
    assert wrong_lines(site.owner, clock, *jobs) == [2]


def test_simultaneous_posts_are_distinguished(site: Site, clock: FrozenClock) -> None:
    senders = [site.stranger, site.owner] * 4
    with ThreadPoolExecutor(8) as pool:
        rejected = pool.map(lambda sender: wrong_lines(sender, clock, site.placed), senders)
        assert list(rejected) == [[1], []] * 4


def test_checked_uses_are_not_looked_up_again(
    site: Site, sessions: SessionFactory, clock: FrozenClock
) -> None:
    unknown = new_id()
    wrong_lines(site.owner, clock, site.placed, unknown)
    reads: list[str] = []

    def note(*arguments: object) -> None:
        if "FROM attempts" in str(arguments[2]):
            reads.append(str(arguments[2]))

    event.listen(sessions.kw["bind"], "before_cursor_execute", note)
    assert wrong_lines(site.owner, clock, site.placed, unknown) == []
    assert reads == []
    clock.advance(FORGET_AFTER.total_seconds())
    assert wrong_lines(site.owner, clock, site.placed) == []
    assert reads == []
    assert wrong_lines(site.owner, clock, unknown) == []
    assert len(reads) == 1

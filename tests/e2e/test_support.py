"""A ticket about a rented job, from its question to its rating, in the browsers of both sides."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core.db import SessionFactory
from core.settings import ServerSettings
from marketplace.cases import Case
from marketplace.support.evidence import response_cases
from marketplace.support.models import Ticket
from marketplace.support.states import TicketState
from protocol.attempts import ObservedState
from tenants.users.sightings import Sightings
from tests.cast import NOON, PASSWORD, Cast, FrozenClock
from tests.e2e.axe import faults_of
from tests.e2e.conftest import STEP_MS
from tests.e2e.walking import sign_in
from tests.fixtures.serving import Serving
from tests.servers import free_port
from tests.unit.jobqueue.builders import dispatch, report, submit
from tests.unit.marketplace.support_builders import rent_with_promise
from timeseries.store import Store

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(300)]

HOUR = timedelta(hours=1)


@dataclass
class Site:
    """A portal on which globex runs a job on an appliance that it rents from acme."""

    url: str
    job_id: str


@pytest.fixture
def site(
    sessions: SessionFactory, cast: Cast, store: Store, clock: FrozenClock, tmp_path: Path
) -> Iterator[Site]:
    with sessions.begin() as session:
        rent_with_promise(session, cast, seconds=4 * 3600)
        job = submit(session, cast.charlie, "secret-training", gpus=1, max_gpu_hour_price=10)
        dispatch(session, now=NOON)
        session.refresh(job)
        assert job.attempt is not None
        assert job.attempt.contract_id is not None
        report(session, job.attempt, ObservedState.RUNNING)
        job_id = job.id
    port = free_port()
    settings = ServerSettings(data_dir=tmp_path, port=port, marketplace=True)
    app = create_asgi_app(Backend(settings, sessions, store, Sightings(sessions)), clock=clock)
    with Serving(app, port=port):
        yield Site(f"http://127.0.0.1:{port}", job_id)


def open_page(chromium: Browser, site: Site, email: str) -> Page:
    context = chromium.new_context(base_url=site.url)
    context.set_default_timeout(STEP_MS)
    page = context.new_page()
    sign_in(page, email, PASSWORD)
    return page


def cases_of(sessions: SessionFactory, provider_id: str) -> list[Case]:
    with sessions() as session:
        return list(response_cases(session, provider_id, since=NOON - HOUR))


def test_a_ticket_closes_within_its_service_level(
    sessions: SessionFactory, cast: Cast, chromium: Browser, site: Site, clock: FrozenClock
) -> None:
    charlie = open_page(chromium, site, cast.charlie.email)
    charlie.goto(f"/jobs/{site.job_id}")
    charlie.get_by_role("link", name="Get support").click()
    charlie.get_by_label("Title").fill("It is slow")
    charlie.get_by_label("Message").fill("Half the speed of yesterday.")
    charlie.get_by_label("Files").set_input_files(
        {"name": "speed.csv", "mimeType": "text/csv", "buffer": b"step,seconds\n1,2\n"}
    )
    charlie.get_by_role("button", name="Open ticket").click()
    expect(charlie.get_by_role("heading", name="It is slow")).to_be_visible()
    expect(charlie.get_by_text("an answer within 4h")).to_be_visible()
    path = charlie.url.removeprefix(site.url)
    clock.advance(3 * 3600)

    # The provider reads the question and what happened, but not which job it is.
    alice = open_page(chromium, site, cast.alice.email)
    expect(alice.locator("[data-badge*=tickets]")).to_have_text("1")
    alice.get_by_role("link", name="Support").click()
    alice.get_by_role("link", name="It is slow").click()
    alice.wait_for_url(f"**{path}")
    expect(alice.get_by_text("Attempt 1 started")).to_be_visible()
    expect(alice.get_by_text("Half the speed of yesterday.")).to_be_visible()
    assert "secret-training" not in alice.content()
    assert cast.charlie.email not in alice.content()
    with alice.expect_download() as downloading:
        alice.get_by_role("link", name="speed.csv").click()
    assert downloading.value.suggested_filename == "speed.csv"
    assert faults_of(alice) == []
    alice.get_by_label("Message").fill("A fan had failed. It is replaced.")
    alice.get_by_role("button", name="Send").click()
    expect(alice.get_by_text("after 3h")).to_be_visible()
    expect(alice.get_by_text("in time", exact=True)).to_be_visible()

    charlie.goto(path)
    expect(charlie.get_by_text("A fan had failed.")).to_be_visible()
    charlie.get_by_role("button", name="Mark as solved").click()
    charlie.get_by_label("Very good").check()
    charlie.get_by_label("Comment").fill("Thanks!")
    charlie.get_by_role("button", name="Send rating").click()
    expect(charlie.get_by_text("Thank you for your rating")).to_be_visible()
    charlie.get_by_role("button", name="Close for good").click()
    charlie.get_by_role("button", name="Close ticket").click()
    expect(charlie.get_by_text("The ticket is closed.")).to_be_visible()
    assert faults_of(charlie) == []

    with sessions() as session:
        ticket = session.scalars(select(Ticket)).one()
        assert (ticket.state, ticket.rating) == (TicketState.CLOSED, 5)
        assert ticket.first_response_seconds == 3 * 3600
    assert [(case.kind, case.good) for case in cases_of(sessions, cast.acme.id)] == [
        ("answered", 1.0)
    ]

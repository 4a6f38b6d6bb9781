"""Addresses of services that scale: their instances, the wake-up by requests, API tokens."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import requests
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session
from starlette.types import ASGIApp

from access.jobs import services, traffic, web_ui_rights
from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.models import Attempt, Job, ServiceTraffic
from jobqueue.queue.service import job_events
from jobqueue.services.autoscaling.instances import set_awake
from jobqueue.services.scaling import service_instances
from jobqueue.services.web_ui import wake
from jobqueue.states import AttemptState, JobState
from protocol.attempts import ObservedState
from protocol.autoscaling import Autoscaling
from protocol.job_spec import JobKind, Port
from tenants.models import LoginSession
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.polling import eventually
from tests.fixtures.serving import Serving
from tests.servers import free_port
from tests.unit.cli.test_web_ui import JOB_SERVER, PORT, Site, settings
from tests.unit.jobqueue.builders import dispatch, report, start

__all__ = ["settings"]

LATER = NOON + timedelta(days=3650)


@dataclass
class ServiceSite(Site):
    """A portal with a service of two instances, on one appliance."""

    def find_endpoint(self, attempt_id: str, port: int) -> str | None:
        self.asked.append((attempt_id, port))
        return self.endpoint

    def sleep(self) -> None:
        """Put all instances to sleep."""
        with self.sessions.begin() as session:
            job = session.get_one(Job, self.job.id)
            instances = service_instances(session, job)
            attempts = [instance.attempt for instance in instances if instance.attempt]
            set_awake(session, instances, 0, now=NOON)
            for attempt in attempts:
                report(session, attempt, ObservedState.STOPPED)
        assert self.states == {JobState.ASLEEP}

    def run(self) -> None:
        """Let what waits run."""
        with self.sessions.begin() as session:
            dispatch(session, now=LATER)
            starting = select(Attempt).where(Attempt.state == AttemptState.STARTING)
            for attempt in session.scalars(starting).unique():
                report(session, attempt, ObservedState.RUNNING)

    @property
    def states(self) -> set[JobState]:
        with self.sessions() as session:
            job = session.get_one(Job, self.job.id)
            return {JobState(instance.state) for instance in service_instances(session, job)}

    @property
    def history(self) -> list[str]:
        with self.sessions() as session:
            scope = scope_of(session.get_one(Job, self.job.id).user)  # type: ignore[arg-type]
            return [event.message for event in job_events(session, scope, self.job.id)]

    def call(self, token: str, path: str = "/", data: bytes | None = None) -> requests.Response:
        """Send a request as a program."""
        headers = {"X-Vedette-Token": token, "Accept": "application/json"}
        return self.get(path, headers=headers, data=data)


@pytest.fixture
def make_site(
    sessions: SessionFactory, cast: Cast, settings: ServerSettings, server_app: ASGIApp
) -> Iterator[Callable[[int], ServiceSite]]:
    stops: list[tuple[ServiceSite, threading.Thread]] = []

    def make(hold_seconds: int) -> ServiceSite:
        policy = Autoscaling(min_instances=0, max_instances=2, hold_seconds=hold_seconds)
        with sessions.begin() as session:
            ports = [Port(container_port=PORT, name="web")]
            fields = {"kind": JobKind.SERVICE, "instances": 2, "autoscaling": policy}
            attempt = start(session, cast, ports=ports, **fields)
            for other in session.scalars(select(Attempt)).unique():
                report(session, other, ObservedState.RUNNING)
            job = session.get_one(Job, attempt.job.array_id)
        endpoint = job_url.removeprefix("http://")
        site = ServiceSite(url, job, attempt, settings, sessions, endpoint)
        agent = threading.Thread(target=site.serve_tunnel)
        agent.start()
        stops.append((site, agent))
        return site

    with Serving(JOB_SERVER) as job_url, Serving(server_app) as url:
        yield make
        for site, agent in stops:
            site.stop.set()
            agent.join()


def list_quietly(parts: Iterator[bytes]) -> None:
    with suppress(requests.RequestException):
        list(parts)


def token_of(site: ServiceSite, cast: Cast) -> str:
    with site.sessions.begin() as session:
        return create_api_token(session, scope_of(cast.alice), name="ci", now=NOON)[1]


def test_requests_are_spread_over_the_instances_and_counted(
    make_site: Callable[[int], ServiceSite], cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.1)
    site = make_site(0)
    cookie = site.cookie_of(cast.alice)
    slow = site.open("/large", cookie)
    assert site.get("/", cookie=cookie).status_code == 200
    assert len({attempt_id for attempt_id, _ in site.asked}) == 2, "the other one has none open"
    assert len(slow.content) == 32 * 2**20

    def counted() -> tuple[int, float]:
        with site.sessions() as session:
            sums = (func.sum(ServiceTraffic.requests), func.sum(ServiceTraffic.busy_seconds))
            row = session.execute(select(*sums)).one()
            return row[0] or 0, row[1] or 0.0

    eventually(lambda: counted()[0] == 2, what="both requests in the database")
    assert counted()[1] > 0


def test_a_page_wakes_the_service_and_reloads_until_it_serves(
    make_site: Callable[[int], ServiceSite], cast: Cast
) -> None:
    site = make_site(60)
    cookie = site.cookie_of(cast.alice)
    site.sleep()
    starting = site.get("/tree", cookie=cookie)
    assert (starting.status_code, starting.headers["Refresh"]) == (503, "2")
    assert "The service is starting" in starting.text
    assert site.states == {JobState.QUEUED, JobState.ASLEEP}
    assert "Woken by a request of Alice." in site.history
    site.run()
    assert site.get("/tree", cookie=cookie).status_code == 200


def test_a_request_of_a_program_waits_for_the_service(
    make_site: Callable[[int], ServiceSite], cast: Cast
) -> None:
    site = make_site(60)
    token = token_of(site, cast)
    site.sleep()
    answers: list[requests.Response] = []
    calling = threading.Thread(target=lambda: answers.append(site.call(token, "/x", b"y" * 100)))
    calling.start()
    eventually(lambda: JobState.QUEUED in site.states, what="the service to wake")
    assert not answers
    site.run()
    calling.join()
    assert answers[0].status_code == 200
    assert answers[0].text.startswith("POST /x 100 ")
    assert "x-vedette-token" not in site.call(token, "/headers").text


def test_a_request_that_waited_long_enough_may_be_tried_again(
    make_site: Callable[[int], ServiceSite], cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "POLL_SECONDS", 0.05)
    site = make_site(1)
    token = token_of(site, cast)
    site.sleep()
    answer = site.call(token)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")


def test_nobody_else_wakes_a_service(make_site: Callable[[int], ServiceSite], cast: Cast) -> None:
    site = make_site(0)
    cookies = [site.cookie_of(user) for user in (cast.bob, cast.charlie, cast.olivia)]
    site.sleep()
    assert [site.get("/", cookie=cookie).status_code for cookie in cookies] == [403, 404, 403]
    assert site.get("/").status_code == 303
    assert site.call("vdt_wrong").status_code == 401
    assert site.states == {JobState.ASLEEP}


def test_a_request_to_an_instance_that_has_gone_wakes_the_service(
    make_site: Callable[[int], ServiceSite], cast: Cast
) -> None:
    site = make_site(60)
    cookie = site.cookie_of(cast.alice)
    site.endpoint = f"127.0.0.1:{free_port()}"
    assert "Nothing answers on port" in site.get("/", cookie=cookie).text
    # For some seconds, requests are still passed on to where it was.
    site.sleep()
    answer = site.get("/", cookie=cookie)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert "The service is starting" in answer.text
    assert JobState.QUEUED in site.states


def test_what_is_open_does_not_end_while_no_instance_is_healthy(
    make_site: Callable[[int], ServiceSite], cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_ui_rights, "RIGHTS_SECONDS", 0.2)
    site = make_site(0)
    endless = site.open("/endless", site.cookie_of(cast.alice))
    parts = endless.iter_content(1)
    assert next(parts) == b"x"
    with site.sessions.begin() as session:
        for job in session.scalars(select(Job)).unique():
            job.health_check = {"kind": "tcp", "port": PORT}
    reading = threading.Thread(target=list_quietly, args=[parts])
    reading.start()
    reading.join(1.5)
    assert reading.is_alive()
    with site.sessions.begin() as session:
        session.execute(delete(LoginSession))
    reading.join(10)
    assert not reading.is_alive(), "the user has signed out"


def test_requests_that_wait_ask_the_database_together(
    make_site: Callable[[int], ServiceSite], cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(3)
    token = token_of(site, cast)
    site.sleep()
    asked = 0

    def counted(*args: Any, **values: Any) -> bool:  # noqa: ANN401 - any
        nonlocal asked
        asked += 1
        return wake(*args, **values)

    monkeypatch.setattr("access.jobs.services.wake", counted)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: site.call(token), range(16)))
    assert {answer.status_code for answer in answers} == {503}
    assert asked < 40


def test_waiting_requests_of_many_users_ask_the_database_as_one(
    make_site: Callable[[int], ServiceSite], cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[str] = []

    def counted(session: Session, job_id: str, user_id: str, *, now: datetime) -> bool:
        polls.append(job_id)
        return wake(session, job_id, user_id, now=now)

    monkeypatch.setattr(services, "wake", counted)
    site = make_site(120)
    tokens = [token_of(site, cast) for _ in range(12)]
    site.sleep()
    began = time.monotonic()
    with ThreadPoolExecutor(len(tokens)) as pool:
        answers = [pool.submit(site.call, token) for token in tokens]
        eventually(lambda: len(polls) >= 4)
        site.run()
        assert {answer.result().status_code for answer in answers} == {200}
    # However many wait, and however slow it is: one at a time.
    assert len(polls) <= (time.monotonic() - began) / services.POLL_SECONDS + 2

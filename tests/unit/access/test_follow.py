"""Following a job: state and log as events, without loss or doubling, for those who may see it."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from starlette.requests import Request
from starlette.types import Scope

from access.database import Database
from access.jobs.follow import create_follow_app
from core.db import SessionFactory
from jobqueue.logs.log_files import LogFiles, move_logs
from jobqueue.models import Attempt
from jobqueue.states import AttemptState
from protocol.attempts import ObservedState
from tenants.models import User
from tenants.principals import Principal, Via, principal_of
from tests.cast import NOON, Cast
from tests.fixtures.serving import Serving
from tests.unit.access.conftest import eventually
from tests.unit.jobqueue.builders import append_log, report, start

Event = tuple[str, str, Any]


@dataclass
class Follower:
    """A user's view of the running application."""

    url: str
    app: Any
    sessions: SessionFactory
    attempt: Attempt
    files: LogFiles

    def open(self, *, user: str = "alice", last: str = "", **query: str | int) -> requests.Response:
        headers = {"Authorization": user} | ({"Last-Event-ID": last} if last else {})
        address = f"{self.url}/api/v1/jobs/{self.attempt.job_id}/follow"
        return requests.get(address, params=query, headers=headers, stream=True, timeout=60)

    def events(self, response: requests.Response) -> Iterator[Event]:
        fields = {"id": "", "event": "", "data": ""}
        for line in response.iter_lines(decode_unicode=True):
            name, _, value = line.partition(": ")
            fields |= {name: value} if line else {}
            if not line and fields["data"]:
                yield fields["id"], fields["event"], json.loads(fields["data"])
                fields = dict.fromkeys(fields, "")

    def texts(self, response: requests.Response) -> list[str]:
        logs = [data for _, name, data in self.events(response) if name == "log"]
        return [line["text"] for data in logs for line in data["lines"]]

    def write(self, text: str) -> None:
        with self.sessions.begin() as session:
            attempt = session.get_one(Attempt, self.attempt.id)
            append_log(session, attempt, text.encode(), offset=attempt.log_bytes)

    def report(self, state: ObservedState) -> None:
        with self.sessions.begin() as session:
            report(session, session.get_one(Attempt, self.attempt.id), state)


@pytest.fixture
def follower(sessions: SessionFactory, cast: Cast, tmp_path: Path) -> Iterator[Follower]:
    users: dict[str, User] = {"alice": cast.alice, "charlie": cast.charlie}

    def identify(scope: Scope) -> Principal | None:
        user = users.get(Request(scope).headers.get("Authorization", ""))
        return None if user is None else principal_of(user, via=Via.TOKEN)

    with sessions.begin() as session:
        attempt = start(session, cast)
    files = LogFiles(str(tmp_path))
    app = create_follow_app(Database(sessions), files, identify=identify)
    with Serving(app) as url:
        yield Follower(url, app, sessions, attempt, files)


def test_lines_arrive_while_the_job_runs_and_the_stream_ends_with_it(follower: Follower) -> None:
    with closing(follower.open()) as response:
        events = follower.events(response)
        _, name, state = next(events)
        assert (name, state["state"], state["attempt_number"]) == ("state", "starting", 1)
        follower.report(ObservedState.RUNNING)
        assert next(events)[2]["state"] == "running"
        follower.write("one\ntw")
        ident, name, data = next(events)
        assert (ident, name, [line["text"] for line in data["lines"]]) == ("1:4", "log", ["one"])
        follower.write("o\n")
        assert next(events)[2]["lines"][0]["text"] == "two"
        assert eventually(lambda: follower.app.state.watch.waiting == 1)
        follower.write("last, without a newline")
        follower.report(ObservedState.SUCCEEDED)
        remaining = [(name, data) for _, name, data in events]
    assert [name for name, _ in remaining if name != "state"] == ["log", "end"]
    assert remaining[-1][1]["state"] == "succeeded"
    assert eventually(lambda: follower.app.state.watch.waiting == 0)


def test_a_connection_that_breaks_anywhere_goes_on_without_loss_or_doubling(
    follower: Follower,
) -> None:
    follower.report(ObservedState.RUNNING)
    wanted = [f"line {number}" for number in range(60)]

    def produce() -> None:
        for text in wanted:
            follower.write(f"{text}\n")
        follower.report(ObservedState.SUCCEEDED)

    producer = threading.Thread(target=produce)
    producer.start()
    seen: list[str] = []
    last, name = "", ""
    while name != "end":
        with closing(follower.open(last=last)) as response:
            for ident, name, data in follower.events(response):
                last = ident or last
                if name == "log":
                    seen += [line["text"] for line in data["lines"]]
                    break
    producer.join()
    assert seen == wanted


def test_the_log_of_a_second_attempt_follows_that_of_the_first(
    follower: Follower, cast: Cast
) -> None:
    with follower.sessions.begin() as session:
        first = session.get_one(Attempt, follower.attempt.id)
        session.add(
            Attempt(
                job_id=first.job_id,
                tenant_id=cast.acme.id,
                appliance_id=first.appliance_id,
                number=2,
                state=first.state,
                bound_at=first.bound_at,
            )
        )
    follower.write("first\n")
    with closing(follower.open(last="1:0")) as response:
        events = follower.events(response)
        assert next(events)[1] == "state"
        assert next(events)[0] == "1:6"
        with follower.sessions.begin() as session:
            session.get_one(Attempt, follower.attempt.id).state = AttemptState.LOST
            [second] = [a for a in session.get_one(Attempt, first.id).job.attempts if a.number == 2]
            append_log(session, second, b"second\n")
        ident, _, data = next(event for event in events if event[1] == "log")
    assert (ident, data["attempt_number"], data["lines"][0]["text"]) == ("2:7", 2, "second")


def test_the_tail_begins_with_a_whole_line(follower: Follower) -> None:
    follower.write("first\nsecond\nthird\n")
    follower.report(ObservedState.SUCCEEDED)
    for _ in ("in the database", "in a file"):
        assert follower.texts(follower.open(tail_bytes=9)) == ["third"]
        assert follower.texts(follower.open(tail_bytes=13)) == ["second", "third"]
        assert follower.texts(follower.open(tail_bytes=10_000)) == ["first", "second", "third"]
        move_logs(follower.sessions, follower.files, now=NOON + timedelta(days=1))
    assert follower.files.names(follower.attempt.tenant_id) == [follower.attempt.job_id]


def test_who_may_not_see_it_or_asks_for_nonsense_gets_an_error(follower: Follower) -> None:
    for user, query, status in (
        ("", {}, 401),
        ("charlie", {}, 404),
        ("alice", {"after": "1"}, 422),
        ("alice", {"after": "1:-2"}, 422),
        ("alice", {"after": "9:0"}, 404),
        ("alice", {"tail_bytes": "1e3"}, 422),
    ):
        with closing(follower.open(user=user, **query)) as response:
            assert response.status_code == status
            assert response.json()["status"] == status

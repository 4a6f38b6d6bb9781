"""The page of the log search: lines, errors, lines around a line, and the API beside it."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from jobqueue.jobs.gangs import gang_members
from logs.models import LogForward
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock
from tests.unit.jobqueue.builders import add_appliance, append_log, start
from tests.unit.logs.lines import line, record, send
from tests.unit.portal.conftest import Browser


def path(address: str, query: Mapping[str, object]) -> str:
    return f"{address}?{urlencode(query)}"


def json_of(browser: Browser, address: str) -> Any:  # noqa: ANN401 - JSON
    return browser.get(address).json


@pytest.fixture
def appliance(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Appliance:
    """An appliance whose kernel has written 20 lines in the last 20 seconds."""
    with sessions.begin() as session:
        added = add_appliance(session, cast.acme, "dgx-09")
    lines = [
        line(f"<b>tick {number}</b>", second=number - 20, unit="kernel") for number in range(20)
    ]
    send(sessions, added, *lines, now=clock.now + timedelta(seconds=1))
    return added


def test_lines_are_shown_newest_first_and_escaped(alice: Browser, appliance: Appliance) -> None:
    text = alice.get("/logs?source=appliance").text
    assert text.index("tick 19") < text.index("tick 0&lt;")
    assert "&lt;b&gt;tick 0&lt;/b&gt;" in text
    assert f"/appliances/{appliance.id}" in text


@pytest.mark.usefixtures("appliance")
def test_an_error_of_the_search_is_shown_on_the_page(alice: Browser) -> None:
    answer = alice.get("/logs?search=/(/")
    assert answer.status_code == 200
    assert "not a regular expression" in answer.text
    assert "No lines match" in alice.get("/logs?search=nothing").text


def test_the_lines_around_a_line_are_of_the_same_appliance(
    alice: Browser, charlie: Browser, appliance: Appliance
) -> None:
    query = {"search": '"tick 10"', "source": "appliance"}
    [found_line] = json_of(alice, path("/api/v1/logs", query))["items"]
    place = {name: found_line[name] for name in ("source", "at_ns", "sequence", "appliance_id")}
    around = json_of(alice, path("/api/v1/logs/context", {**place, "count": 2}))["items"]
    assert [item["text"] for item in around] == [f"<b>tick {n}</b>" for n in (8, 9, 10, 11, 12)]
    assert "tick 11" in alice.get(path("/logs/context", place)).text
    assert charlie.get(path("/logs/context", place)).status_code == 404
    assert charlie.get(f"/logs?appliance_id={appliance.id}").status_code == 404
    assert alice.get("/logs/context?source=job&at_ns=x").status_code == 404
    latest = {"source": "appliance", "at_ns": 2**63 - 1}
    assert json_of(alice, path("/api/v1/logs/context", latest))["items"] == []


@pytest.mark.usefixtures("appliance")
def test_counts_and_exports_are_of_the_same_lines(alice: Browser, charlie: Browser) -> None:
    query = {"source": "appliance", "search": "tick"}
    histogram = json_of(alice, path("/api/v1/logs/histogram", query))
    assert sum(sum(level["counts"]) for level in histogram["levels"]) == 20
    exported = alice.get(path("/api/v1/logs/export", query | {"format": "txt"})).text
    assert exported.splitlines()[0].endswith("INFO dgx-09 kernel: <b>tick 19</b>")
    assert len(exported.splitlines()) == 20
    assert charlie.get(path("/api/v1/logs/export", query)).text == ""
    always = query | {"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T00:00:00Z"}
    assert len(json_of(alice, path("/api/v1/logs", always))["items"]) == 20
    histogram = json_of(alice, path("/api/v1/logs/histogram", always))
    assert sum(sum(level["counts"]) for level in histogram["levels"]) == 20
    before = query | {"since": "0001-01-01T00:00:00Z", "until": "1960-01-01T00:00:00Z"}
    assert json_of(alice, path("/api/v1/logs", before))["items"] == []
    assert json_of(alice, path("/api/v1/logs/histogram", before))["is_complete"]
    refused = alice.get(path("/api/v1/logs", {"after": "x"}))
    assert refused.status_code == 422
    assert b"after" in refused.data


def test_receivers_of_events_and_log_targets_are_shown_with_what_they_get(
    alice: Browser, sessions: SessionFactory
) -> None:
    receiver = {"name": "ci", "kind": "events", "target": "https://ci.example/", "topics": ["job"]}
    forward = {"name": "Loki", "kind": "loki", "url": "https://user:key@loki.example/x"}
    added: Any = alice.call("POST", "/api/v1/receivers", receiver).json
    assert (added["topics"], added["secret"][:6]) == (["job"], "whsec_")
    created: Any = alice.call("POST", "/api/v1/log-forwards", forward).json
    assert created["sources"] == ["appliance", "job"]
    assert created["url"] == "https://loki.example"
    assert json_of(alice, "/api/v1/receivers")["items"][0]["topics"] == ["job"]
    assert json_of(alice, "/api/v1/log-forwards")["total"] == 1
    changed: Any = alice.call(
        "PATCH", f"/api/v1/log-forwards/{created['id']}", {"is_enabled": False}
    ).json
    assert (changed["is_enabled"], changed["name"]) == (False, "Loki")
    form = alice.get(f"/logs/forwarding/{created['id']}").text
    assert "user:key" not in form
    saved = {
        "name": "Loki",
        "kind": "loki",
        "sources": "job",
        "minimum_level": "info",
        "is_enabled": "y",
    }
    assert alice.post(f"/logs/forwarding/{created['id']}", saved).status_code == 302
    with sessions.begin() as session:
        assert session.scalars(select(LogForward.url)).all() == ["https://user:key@loki.example/x"]
    assert "waiting for lines" in alice.get("/logs/forwarding").text
    assert "Webhook of events" in alice.get("/receivers").text


def test_the_logs_of_a_gang_show_the_first_member_at_first(
    alice: Browser, charlie: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        attempts = [
            member.attempts[-1]
            for member in gang_members(session, start(session, cast, nodes=2).job)
        ]
        for attempt in attempts:
            text = record(f"loss of rank {attempt.job.array_index}", second=-1)
            append_log(session, attempt, text)
        first, second = (attempt.job_id for attempt in attempts)
    assert clock.now
    address = f"/logs?source=job&job_id={first}"
    shown = {
        query: [number for number in (0, 1) if f"loss of rank {number}" in alice.get(query).text]
        for query in (address, f"{address}&rank=1", f"{address}&rank=all", f"{address}&rank=x")
    }
    assert list(shown.values()) == [[0], [1], [0, 1], [0]]
    page = alice.get(address).text
    assert '<option value="0" selected>Member 0, the first</option>' in page
    assert "rank=0" in page[page.index("/api/v1/logs/export?") :]
    assert "Member 0" not in alice.get(f"/logs?source=job&job_id={second}").text
    found_lines = json_of(alice, f"/api/v1/logs?job_id={first}&source=job&rank=1")["items"]
    assert [line["text"] for line in found_lines] == ["loss of rank 1"]
    assert len(json_of(alice, f"/api/v1/logs?job_id={first}&source=job")["items"]) == 2
    assert alice.get(f"/api/v1/logs?job_id={first}&rank=-1").status_code == 422
    assert charlie.get(f"{address}&rank=1").status_code == 404

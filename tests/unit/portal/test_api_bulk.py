"""Several appliances are changed by one request: all of them or none."""

import pytest
from werkzeug.test import TestResponse

from core.db import SessionFactory
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World, make_world

PATH = "/api/v1/appliances/bulk"


@pytest.fixture
def world(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> World:
    """Acme with `dgx-01`, on which a job runs."""
    with sessions.begin() as session:
        return make_world(session, cast, now=clock.now)


@pytest.fixture
def busy(world: World) -> str:
    return world.ids["appliance_id"]


@pytest.fixture
def idle(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> str:
    with sessions.begin() as session:
        made = make_appliance(session, cast.acme, "dgx-02", now=clock.now)
        made.labels = {"rack": "b12", "tier": "gold"}
        return made.id


def ask(browser: Browser, ids: list[str], action: str, **values: object) -> TestResponse:
    body = {"appliance_ids": ids, "action": action, **values}
    return browser.call("POST", PATH, body)


def items(answer: TestResponse) -> list[dict[str, object]]:
    assert answer.status_code == 200, answer.text
    assert answer.json is not None
    found: list[dict[str, object]] = answer.json["items"]
    return found


def test_what_they_are_now_comes_in_the_order_of_the_request(
    alice: Browser, busy: str, idle: str
) -> None:
    found = items(ask(alice, [idle, busy, idle], "drain"))
    assert [(one["id"], one["life"]) for one in found] == [(idle, "drained"), (busy, "drained")]
    assert {one["drained_at"] for one in items(ask(alice, [idle, busy], "undrain"))} == {None}


def test_labels_are_put_on_and_taken_off_at_once(alice: Browser, idle: str) -> None:
    (found,) = items(ask(alice, [idle], "label", labels={"rack": "c1", "tier": None, "row": "3"}))
    assert found["labels"] == {"rack": "c1", "row": "3"}


def test_they_are_moved_and_what_is_left_out_stays(alice: Browser, idle: str) -> None:
    items(ask(alice, [idle], "move", site="Oslo", region="north"))
    (found,) = items(ask(alice, [idle], "move", site="Bergen"))
    assert (found["site"], found["region"]) == ("Bergen", "north")


def test_they_are_retired_and_taken_back(alice: Browser, idle: str) -> None:
    (found,) = items(ask(alice, [idle], "retire"))
    assert found["life"] == "retired"
    (found,) = items(ask(alice, [idle], "reinstate"))
    assert found["retired_at"] is None


def test_where_one_is_refused_none_is_changed_and_it_is_named(
    alice: Browser, busy: str, idle: str, sessions: SessionFactory
) -> None:
    answer = ask(alice, [idle, busy], "retire")
    assert answer.status_code == 409
    assert answer.json is not None
    assert answer.json["code"] == "bulk_refused"
    assert list(answer.json["errors"]) == [busy]
    assert "'train'" in answer.json["errors"][busy][0]
    with sessions() as session:
        assert session.get_one(Appliance, idle).retired_at is None


def test_one_that_is_not_there_is_named_and_the_others_stay(
    alice: Browser, charlie: Browser, idle: str, busy: str, sessions: SessionFactory
) -> None:
    answer = ask(alice, [idle, "nowhere"], "drain")
    assert answer.status_code == 404
    assert list((answer.json or {})["errors"]) == ["nowhere"]
    with sessions() as session:
        assert session.get_one(Appliance, idle).drained_at is None
    assert set((ask(charlie, [idle, busy], "drain").json or {})["errors"]) == {idle, busy}


@pytest.mark.parametrize(
    ("action", "values", "field"),
    [
        ("label", {}, "labels"),
        ("drain", {"labels": {"a": "b"}}, "labels"),
        ("move", {}, "site"),
        ("retire", {"region": "north"}, "site"),
    ],
)
def test_an_action_takes_what_is_for_it_and_nothing_else(
    alice: Browser, idle: str, action: str, values: dict[str, object], field: str
) -> None:
    answer = ask(alice, [idle], action, **values)
    assert answer.status_code == 422
    assert list((answer.json or {})["errors"]) == [field]


def test_who_may_only_look_changes_none(bob: Browser, idle: str) -> None:
    assert ask(bob, [idle], "drain").status_code == 403


def test_the_page_moves_and_retires_the_ticked_ones(alice: Browser, idle: str, busy: str) -> None:
    form: dict[str, object] = {"appliance_id": [idle, busy], "action": "move", "site": "Oslo"}
    alice.post("/appliances/bulk", form)
    assert "2 appliances have another site now." in alice.get("/appliances?site=Oslo").text
    alice.post("/appliances/bulk", {"appliance_id": [idle, busy], "action": "retire"})
    assert "Nothing was changed: 1 of 2 appliances" in alice.get("/appliances").text
    alice.post("/appliances/bulk", {"appliance_id": [idle], "action": "retire"})
    assert "1 appliance are retired" in alice.get("/appliances").text

"""Bulk actions change all named appliances or none."""

import pytest
from werkzeug.test import TestResponse

from core.db import SessionFactory
from tenants.models import Appliance
from tests.cast import Cast, FrozenClock, make_appliance
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World

PATH = "/api/v1/appliances/bulk"


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
    rows: list[dict[str, object]] = answer.json["items"]
    return rows


def test_the_response_has_the_order_of_the_request(alice: Browser, busy: str, idle: str) -> None:
    drained = items(ask(alice, [idle, busy, idle], "drain"))
    assert [(row["id"], row["status"]) for row in drained] == [(idle, "drained"), (busy, "drained")]
    assert {row["drained_at"] for row in items(ask(alice, [idle, busy], "undrain"))} == {None}


def test_labels_are_set_and_removed_together(alice: Browser, idle: str) -> None:
    (row,) = items(ask(alice, [idle], "label", labels={"rack": "c1", "tier": None, "row": "3"}))
    assert row["labels"] == {"rack": "c1", "row": "3"}


def test_a_move_leaves_omitted_fields_unchanged(alice: Browser, idle: str) -> None:
    items(ask(alice, [idle], "move", site="Oslo", region="north"))
    (row,) = items(ask(alice, [idle], "move", site="Bergen"))
    assert (row["site"], row["region"]) == ("Bergen", "north")


def test_appliances_are_retired_and_reinstated(alice: Browser, idle: str) -> None:
    (row,) = items(ask(alice, [idle], "retire"))
    assert row["status"] == "retired"
    (row,) = items(ask(alice, [idle], "reinstate"))
    assert row["retired_at"] is None


def test_one_refusal_changes_none_and_is_reported_by_id(
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


def test_a_missing_appliance_is_reported_and_none_is_changed(
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
def test_an_action_accepts_only_its_own_parameters(
    alice: Browser, idle: str, action: str, values: dict[str, object], field: str
) -> None:
    answer = ask(alice, [idle], action, **values)
    assert answer.status_code == 422
    assert list((answer.json or {})["errors"]) == [field]


def test_members_can_not_change_appliances_in_bulk(bob: Browser, idle: str) -> None:
    assert ask(bob, [idle], "drain").status_code == 403


def test_the_page_moves_and_retires_the_ticked_ones(alice: Browser, idle: str, busy: str) -> None:
    form: dict[str, object] = {"appliance_id": [idle, busy], "action": "move", "site": "Oslo"}
    alice.post("/appliances/bulk", form)
    assert "2 appliances moved" in alice.get("/appliances?site=Oslo").text
    alice.post("/appliances/bulk", {"appliance_id": [idle, busy], "action": "retire"})
    assert "1 of 2 appliances" in alice.get("/appliances").text
    alice.post("/appliances/bulk", {"appliance_id": [idle], "action": "retire"})
    assert "1 appliance retired" in alice.get("/appliances").text

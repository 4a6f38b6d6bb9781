"""Access points in the console and the API."""

import re
from datetime import timedelta

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from core.ids import hash_secret
from tenants.models import AccessPoint, Appliance, AuditEntry
from tests.cast import NOON, Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World

PAGE, API = "/console/access-points", "/api/v1/access-points"
FORM = {
    "name": "Oslo",
    "url": "https://osl.portal.example",
    "kind": "relay",
    "region": "eu-north",
    "weight": 50,
    "tenant_id": "",
}
SECRET = re.compile(r"vdr_[\w-]{43}")


def stored(sessions: SessionFactory, name: str = "Oslo") -> AccessPoint:
    with sessions() as session:
        return session.scalars(select(AccessPoint).where(AccessPoint.name == name)).one()


@pytest.mark.usefixtures("cast")
def test_the_empty_list_explains_what_access_points_are_for(olivia: Browser) -> None:
    page = olivia.get(PAGE).text
    assert "No access points yet" in page
    assert "stores their samples while the portal is away" in page


def test_the_token_of_a_relay_is_shown_once(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert cast
    page = olivia.post(f"{PAGE}/new", FORM).text
    secret = SECRET.findall(page)[0]
    assert "VEDETTE_RELAY_UPSTREAM_URL=" in page
    assert "vedette relay" in page
    point = stored(sessions)
    assert point.secret_hash == hash_secret(secret)
    for path in (PAGE, f"{PAGE}/{point.id}", f"{API}/{point.id}"):
        answer = olivia.get(path)
        assert answer.status_code == 200
        assert "vdr_" not in answer.text
    renewed = olivia.post(f"{PAGE}/{point.id}/token").text
    assert SECRET.findall(renewed)[0] != secret
    assert stored(sessions).secret_hash == hash_secret(SECRET.findall(renewed)[0])


def test_a_direct_access_point_leads_back_to_the_list(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert cast
    answer = olivia.post(f"{PAGE}/new", FORM | {"kind": "direct"})
    assert (answer.status_code, answer.headers["Location"]) == (302, PAGE)
    assert stored(sessions).secret_hash is None
    assert "Create new token" not in olivia.get(f"{PAGE}/{stored(sessions).id}").text


def test_errors_are_shown_at_their_fields(olivia: Browser, cast: Cast) -> None:
    for field, value, message in (
        ("name", "", "Enter a name."),
        ("url", "https://osl.example/x", "is not an address of an access point"),
        ("weight", "", "Enter 0 to 1000."),
        ("weight", "1001", "choose 0 to 1000"),
        ("weight", "x", "Not a valid integer value"),
        ("kind", "bridge", "Not a valid choice"),
        ("tenant_id", "nobody", "Not a valid choice"),
    ):
        assert cast
        answer = olivia.post(f"{PAGE}/new", FORM | {field: value})
        assert answer.status_code == 422
        assert message in answer.text


def test_an_access_point_is_drained_given_to_a_tenant_and_removed(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    olivia.post(f"{PAGE}/new", FORM)
    point = stored(sessions)
    changed = FORM | {"weight": 0, "tenant_id": cast.acme.id, "kind": "direct"}
    assert olivia.post(f"{PAGE}/{point.id}", changed).status_code == 302
    after = stored(sessions)
    # The kind stays.
    assert (after.weight, after.tenant_id, after.secret_hash) == (
        0,
        cast.acme.id,
        point.secret_hash,
    )
    page = olivia.get(PAGE).text
    assert "drained" in page
    assert ">Acme</a>" in page
    assert olivia.post(f"{PAGE}/{point.id}/delete").status_code == 302
    with sessions() as session:
        assert session.scalars(select(AccessPoint)).all() == []
        actions = session.scalars(select(AuditEntry.action).order_by(AuditEntry.id)).all()
    assert [action for action in actions if action.startswith("access_point")] == [
        "access_point.created",
        "access_point.changed",
        "access_point.deleted",
    ]


def test_the_list_shows_how_a_relay_is_doing(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    assert cast
    olivia.post(f"{PAGE}/new", FORM)
    assert "never seen" in olivia.get(PAGE).text
    with sessions.begin() as session:
        point = session.scalars(select(AccessPoint)).one()
        point.seen_at, point.version, point.agents = NOON, "9.8.7", 1234
        point.spool_bytes, point.max_spool_bytes = 9 * 2**30, 10 * 2**30
        point.oldest_spooled_at = NOON - timedelta(minutes=14)
        point.refused_writes, point.undeliverable_bytes = 17, 2048
    page = olivia.get(PAGE).text
    for text in (
        "answering",
        "1,234",
        "9.8.7",
        "9 GiB of 10 GiB",
        "14m ago",
        "17 writes",
        "2 KiB undeliverable",
    ):
        assert text in page, text
    assert "is almost full" in page
    assert "is almost full" in olivia.get("/console").text
    with sessions.begin() as session:
        session.scalars(select(AccessPoint)).one().seen_at = NOON - timedelta(minutes=5)
    assert "seen " in olivia.get(PAGE).text
    assert "The relay Oslo is silent." in olivia.get("/console").text


def test_the_api_does_what_the_pages_do(olivia: Browser, cast: Cast) -> None:
    body = {"name": "Oslo", "url": "https://osl.portal.example/", "kind": "relay"}
    made = olivia.call("POST", API, body)
    assert made.status_code == 201
    point = made.get_json()
    assert SECRET.fullmatch(point["token"])
    assert point["token"] in point["settings"]
    assert (point["url"], point["state"]) == ("https://osl.portal.example", "never_seen")
    path = f"{API}/{point['id']}"
    first = olivia.get(path)
    assert first.get_json() == {
        key: value for key, value in point.items() if key not in {"token", "settings"}
    }
    changed = olivia.call("PATCH", path, {"weight": 0, "tenant_id": cast.acme.id})
    assert (changed.status_code, changed.get_json()["weight"]) == (200, 0)
    stale = {"X-CSRFToken": olivia.csrf_token(), "If-Match": first.headers["ETag"]}
    refused = olivia.client.patch(path, json={"weight": 9}, headers=stale)
    assert refused.status_code == 412
    renewed = olivia.call("POST", f"{path}/token").get_json()
    assert renewed["token"] != point["token"]
    assert [item["id"] for item in olivia.get(API).get_json()["items"]] == [point["id"]]
    assert olivia.call("DELETE", path).status_code == 204
    assert olivia.get(path).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "x", "url": "x"},
        {"name": "x", "url": "https://x.example", "weight": True},
        {"name": "x", "url": "https://x.example", "weight": 10**30},
        {"name": "x", "url": "https://x.example", "kind": "bridge"},
        {"name": "x", "url": "https://x.example", "tenant_id": "\u0000"},
    ],
)
def test_bad_bodies_are_refused(olivia: Browser, cast: Cast, body: dict[str, object]) -> None:
    assert cast
    assert olivia.call("POST", API, body).status_code in {400, 422}


def test_tenants_have_no_access_points(alice: Browser, world: World) -> None:
    path = f"{API}/{world.ids['access_point_id']}"
    assert alice.get(PAGE).status_code == 403
    assert alice.get(API).status_code == 403
    assert alice.get(path).status_code == 403
    assert "Access points" not in alice.get("/appliances").text


def test_an_appliance_shows_the_address_that_its_agent_uses(
    alice: Browser, world: World, sessions: SessionFactory
) -> None:
    ident = world.ids["appliance_id"]
    assert "Access point" not in alice.get(f"/appliances/{ident}").text
    with sessions.begin() as session:
        session.get_one(Appliance, ident).access_point = "https://fra.portal.example"
    assert "https://fra.portal.example" in alice.get(f"/appliances/{ident}").text
    shown = alice.get(f"/api/v1/appliances/{ident}").get_json()
    assert shown["access_point"] == "https://fra.portal.example"

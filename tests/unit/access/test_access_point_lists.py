"""The list of access points in the answer to a heartbeat, and the address that an agent uses."""

import msgspec
import pytest

from access import access_points
from core.db import SessionFactory
from protocol.access_points import NO_ACCESS_POINTS, AccessPointAddress, AccessPointList
from protocol.agent_update import HeartbeatReply
from protocol.heartbeat import Heartbeat
from protocol.inventory import Inventory
from tenants.fleet.access_points import (
    AccessPointRequest,
    create_access_point,
    delete_access_point,
)
from tenants.models import AccessPoint, Appliance
from tests.cast import NOON, Cast, scope_of
from tests.unit.access.conftest import AgentAPI
from tests.unit.access.relays import NOON_NS, PUBLIC_URL

FRANKFURT = AccessPointAddress(url="https://fra.portal.example", weight=300)
OSLO = AccessPointAddress(url="https://osl.portal.example", weight=0)
LAST = AccessPointAddress(url=PUBLIC_URL, weight=0)

pytestmark = pytest.mark.parametrize("settings", [{"public_url": PUBLIC_URL}], indirect=True)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_points, "MAX_AGE_SECONDS", 0.0)


def add(
    sessions: SessionFactory, cast: Cast, address: AccessPointAddress, tenant_id: str | None = None
) -> str:
    wanted = AccessPointRequest(
        name=address.url, url=address.url, weight=address.weight, tenant_id=tenant_id
    )
    with sessions.begin() as session:
        made = create_access_point(
            session, scope_of(cast.olivia), wanted, public_url=PUBLIC_URL, now=NOON
        )
    return made.point.id


def beat(
    api: AgentAPI, *, revision: str = NO_ACCESS_POINTS, access_point: str = ""
) -> AccessPointList | None:
    body = Heartbeat(
        agent_version="1",
        sent_at_ns=NOON_NS,
        inventory=Inventory(hostname="dgx"),
        access_point=access_point,
        access_points_revision=revision,
    )
    response = api.request("POST", "/agent/v1/heartbeat", data=msgspec.json.encode(body))
    if response.status_code == 204:
        return None
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=HeartbeatReply).access_points


def test_without_access_points_there_is_no_list(api: AgentAPI) -> None:
    assert beat(api) is None


def test_an_agent_gets_the_list_until_it_has_it(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    add(sessions, cast, OSLO)
    add(sessions, cast, FRANKFURT, cast.acme.id)
    first = beat(api)
    assert first is not None
    assert first.points == [FRANKFURT, OSLO, LAST]
    assert beat(api, revision=first.revision) is None
    assert beat(api, revision="of an older list") == first


def test_an_agent_that_supports_no_lists_gets_none(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    add(sessions, cast, FRANKFURT)
    assert beat(api, revision="") is None


def test_access_points_of_another_tenant_are_not_listed(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    add(sessions, cast, FRANKFURT, cast.globex.id)
    assert beat(api) is None


def test_the_public_url_is_listed_once(api: AgentAPI, sessions: SessionFactory, cast: Cast) -> None:
    own = AccessPointAddress(url=PUBLIC_URL, weight=500)
    add(sessions, cast, own)
    listed = beat(api)
    assert listed is not None
    assert listed.points == [own]


def test_agents_keep_the_public_url_when_the_last_access_point_is_gone(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    access_point_id = add(sessions, cast, FRANKFURT)
    listed = beat(api)
    assert listed is not None
    with sessions.begin() as session:
        delete_access_point(session, scope_of(cast.olivia), access_point_id)
    left = beat(api, revision=listed.revision)
    assert left is not None
    assert left.points == [AccessPointAddress(url=PUBLIC_URL, weight=0)]
    assert beat(api, revision=left.revision) is None
    assert beat(api) is None, "an agent that never had a list needs none"


def test_a_change_of_the_weight_is_another_revision(
    api: AgentAPI, sessions: SessionFactory, cast: Cast
) -> None:
    access_point_id = add(sessions, cast, FRANKFURT)
    before = beat(api)
    with sessions.begin() as session:
        session.get_one(AccessPoint, access_point_id).weight = 0
    after = beat(api)
    assert before is not None
    assert after is not None
    assert before.revision != after.revision


@pytest.mark.parametrize(
    ("reported", "stored"),
    [
        ("https://FRA.portal.example/", "https://fra.portal.example"),
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("", ""),
        ("javascript:alert(1)", ""),
        ("https://user:secret@fra.portal.example", ""),
        ("https://" + "x" * 300, ""),
    ],
)
def test_the_address_that_an_agent_uses_is_stored(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, reported: str, stored: str
) -> None:
    beat(api, access_point="https://before.example")
    beat(api, access_point=reported)
    with sessions() as session:
        assert session.get_one(Appliance, dgx.id).access_point == stored

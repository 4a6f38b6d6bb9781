"""Pages and API of enrollment tokens and certificates."""

from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from core.clock import to_ns
from core.db import SessionFactory
from protocol.inventory import Inventory
from tenants.enrollment import enroll_appliance
from tenants.fleet.agents import fence_appliance
from tenants.models import Appliance, ApplianceCertificate, ApplianceState, EnrollmentToken
from tenants.pki.admission import admit_certificate
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_appliance, inventory, make_certificate
from timeseries.points import Point
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Store, write

HOST = "http://portal.example"


@pytest.fixture
def dgx(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> Appliance:
    with sessions.begin() as session:
        return add_appliance(session, cast, "dgx-01", now=clock.now)


@pytest.fixture
def certificate(
    sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> ApplianceCertificate:
    """A certificate of `dgx` that is in use."""
    with sessions.begin() as session:
        made = make_certificate(session, session.get_one(Appliance, dgx.id), now=clock.now)
        admit_certificate(session, made.fingerprint, now=clock.now)
        return made


def test_one_line_is_shown_once_and_the_token_is_listed(alice: Browser) -> None:
    form: dict[str, object] = {"name": "Rack B12", "site": "Delft", "uses": 3, "lifetime": "24"}
    shown = alice.post("/appliances/new", form).text
    assert f"curl -fsS {HOST}/install | sudo sh -s -- vde_" in shown
    assert f"vedette agent enroll {HOST} vde_" in shown
    assert sha256(alice.get("/install").data).hexdigest() in shown
    listed = alice.get("/appliances/tokens").text
    assert "Rack B12" in listed
    assert "0 of 3" in listed
    assert "vde_" not in listed


@dataclass(frozen=True, slots=True)
class Enrollment:
    """A token for one host, and what the portal reports about it."""

    browser: Browser
    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    made: dict[str, Any]

    def enroll(self, name: str) -> str:
        with self.sessions.begin() as session:
            appliance, _secret = enroll_appliance(
                session,
                secret=self.made["token"],
                name=name,
                inventory=msgspec.convert(inventory(name), Inventory),
                now=self.clock.now,
            )
            return appliance.id

    def connect(self, appliance_id: str, cast: Cast) -> None:
        """Let the agent send a heartbeat and samples."""
        self.clock.advance(2)
        with self.sessions.begin() as session:
            appliance = session.get_one(Appliance, appliance_id)
            appliance.last_seen_at, appliance.state = self.clock.now, ApplianceState.ONLINE
        point = Point("agent", {}, {"buffered_points": 0}, to_ns(self.clock.now))
        identity = {TENANT_TAG: cast.acme.id, APPLIANCE_TAG: appliance_id}
        assert write(self.store, [point], identity=identity) == []

    def progress(self) -> dict[str, Any]:
        answer = self.browser.get(f"/api/v1/enrollment-tokens/{self.made['id']}/progress").json
        return dict(answer or {})

    def page(self) -> str:
        return self.browser.get(f"/appliances/tokens/{self.made['id']}").text


@pytest.fixture
def enrollment(
    alice: Browser, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> Enrollment:
    made = alice.call("POST", "/api/v1/enrollment-tokens", {"name": "rack"}).json
    assert made is not None
    return Enrollment(alice, sessions, store, clock, made)


def test_an_enrollment_waits_for_the_host_then_for_its_samples(
    enrollment: Enrollment, cast: Cast
) -> None:
    before, page_before = enrollment.progress(), enrollment.page()
    appliance_id = enrollment.enroll("dgx-07")
    between, page_between = enrollment.progress(), enrollment.page()
    enrollment.connect(appliance_id, cast)
    after, page_after = enrollment.progress(), enrollment.page()

    assert before == {"state": "waiting", "uses_left": 1, "hosts": []}
    assert "Waiting for the host" in page_before
    assert [host["state"] for host in between["hosts"]] == ["connecting"]
    assert "dgx-07</a> has enrolled" in page_between
    assert (after["state"], after["uses_left"]) == ("complete", 0)
    assert [(host["name"], host["state"]) for host in after["hosts"]] == [("dgx-07", "online")]
    assert "dgx-07</a> is online, 2 GPUs" in page_after
    assert enrollment.made["token"] not in page_after


def test_a_host_without_samples_after_a_minute_gets_advice(enrollment: Enrollment) -> None:
    enrollment.enroll("dgx-07")
    enrollment.clock.advance(61)

    assert [host["state"] for host in enrollment.progress()["hosts"]] == ["silent"]
    assert "vedette agent check" in enrollment.page()


def test_a_token_that_nobody_used_in_time_is_closed(enrollment: Enrollment) -> None:
    enrollment.clock.advance(timedelta(days=2).total_seconds())

    assert enrollment.progress()["state"] == "closed"
    assert "has expired" in enrollment.page()


def test_a_host_that_enrolls_again_is_waited_for(
    alice: Browser, enrollment: Enrollment, dgx: Appliance
) -> None:
    made = alice.call("POST", f"/api/v1/appliances/{dgx.id}/enrollment-token", {}).json
    assert made is not None
    second = replace(enrollment, made=made)

    second.enroll("whatever")

    assert [host["name"] for host in second.progress()["hosts"]] == ["dgx-01"]


def test_a_token_is_revoked_in_the_browser(alice: Browser, sessions: SessionFactory) -> None:
    alice.post("/appliances/new", {"uses": 1, "lifetime": "24"})
    with sessions.begin() as session:
        ident = session.scalars(select(EnrollmentToken.id)).one()
    assert alice.post(f"/appliances/tokens/{ident}/revoke").status_code == 302
    assert "revoked" in alice.get("/appliances/tokens").text


def test_without_tokens_the_page_explains_their_purpose(alice: Browser) -> None:
    assert 'class="vd-empty"' in alice.get("/appliances/tokens").text


def test_a_member_neither_makes_nor_sees_tokens(bob: Browser) -> None:
    for path in ("/appliances/tokens", "/appliances/new", "/api/v1/enrollment-tokens"):
        assert bob.get(path).status_code == 403, path


def test_programs_make_list_and_revoke_tokens(alice: Browser) -> None:
    path = "/api/v1/enrollment-tokens"
    made = alice.call("POST", path, {"name": "ci", "uses": 2, "labels": {"rack": "b12"}}).json
    assert made is not None
    assert made["command"] == f"vedette agent enroll {HOST} {made['token']}"
    assert made["install_command"] == f"curl -fsS {HOST}/install | sudo sh -s -- {made['token']}"
    assert (made["uses"], made["uses_left"], made["appliance_id"]) == (2, 2, None)
    listed = alice.get(f"{path}?is_usable=true").json
    assert listed is not None
    assert [token["id"] for token in listed["items"]] == [made["id"]]
    assert "token" not in listed["items"][0]
    assert alice.call("POST", f"{path}/{made['id']}/revoke").status_code == 200
    usable = alice.get(f"{path}?is_usable=true").json
    assert usable is not None
    assert usable["total"] == 0


def test_an_appliance_is_enrolled_again_by_a_command_of_its_own(
    alice: Browser, dgx: Appliance
) -> None:
    shown = alice.post(f"/appliances/{dgx.id}/reenroll").text
    assert "--again" in shown
    assert "Enroll dgx-01 again" in shown
    answer = alice.call("POST", f"/api/v1/appliances/{dgx.id}/enrollment-token", {})
    assert answer.status_code == 201
    assert answer.json is not None
    assert answer.json["appliance_id"] == dgx.id


@pytest.mark.usefixtures("certificate")
def test_the_appliances_page_shows_how_its_agent_authenticates(
    alice: Browser, dgx: Appliance
) -> None:
    page = alice.get(f"/appliances/{dgx.id}").text
    assert "active" in page
    assert f"/appliances/{dgx.id}/certificates" in page


def test_a_certificate_is_revoked_in_the_browser(
    alice: Browser, dgx: Appliance, certificate: ApplianceCertificate
) -> None:
    assert certificate.serial[:12] in alice.get(f"/appliances/{dgx.id}/certificates").text
    assert alice.post(f"/certificates/{certificate.id}/revoke").status_code == 302
    listed = alice.get(f"/api/v1/appliances/{dgx.id}/certificates").json
    assert listed is not None
    assert [certificate["state"] for certificate in listed["items"]] == ["revoked"]


def test_a_viewer_sees_certificates_and_revokes_none(
    bob: Browser, dgx: Appliance, certificate: ApplianceCertificate
) -> None:
    assert "Revoke" not in bob.get(f"/appliances/{dgx.id}/certificates").text
    answer = bob.call("POST", f"/api/v1/certificates/{certificate.id}/revoke", {})
    assert answer.status_code == 403


@pytest.mark.usefixtures("certificate")
def test_certificates_that_were_not_renewed_are_listed_for_tenant_and_operator(
    alice: Browser, olivia: Browser, clock: FrozenClock
) -> None:
    assert 'class="vd-empty"' in alice.get("/certificates").text
    clock.advance(timedelta(days=6, hours=1).total_seconds())
    for browser in (alice, olivia):
        browser.sign_in("alice@acme.example" if browser is alice else "olivia@vedette.example")
        assert "overdue" in browser.get("/certificates").text
        listed = browser.get("/api/v1/certificates?within_hours=24").json
        assert listed is not None
        assert listed["total"] == 1


def test_a_fence_is_explained_and_lifted_in_the_browser(
    alice: Browser, dgx: Appliance, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        fence_appliance(session, session.get_one(Appliance, dgx.id), reason="x", now=clock.now)
    assert "Fenced " in alice.get(f"/appliances/{dgx.id}").text
    assert alice.post(f"/appliances/{dgx.id}/unfence").status_code == 302
    assert "Fenced " not in alice.get(f"/appliances/{dgx.id}").text
    answer = alice.get(f"/api/v1/appliances/{dgx.id}").json
    assert answer is not None
    assert answer["fenced_at"] is None

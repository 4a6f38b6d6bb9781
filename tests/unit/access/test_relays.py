"""The registry, changes and reports of relays, and what happens to a token that is revoked."""

import threading
import time
from datetime import timedelta

import msgspec
import pytest
import requests

from access.relays import endpoints
from core.db import SessionFactory
from protocol.relays import RegistrySnapshot, RelayReport
from tenants.fleet.access_points import (
    change_access_point,
    delete_access_point,
    renew_relay_token,
)
from tenants.fleet.agents import block_appliance, block_tenant
from tenants.models import AccessPoint, Appliance, Tenant, TenantState
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.access.conftest import AgentAPI, eventually
from tests.unit.access.relays import NOON_NS, PUBLIC_URL, RelayClient, make_relay
from tests.unit.access.test_client_certificates import issue

ENDPOINTS = [
    ("GET", "/relay/v1/registry"),
    ("POST", "/relay/v1/changes"),
    ("POST", "/relay/v1/samples"),
    ("POST", "/relay/v1/report"),
]
REPORT = RelayReport(
    version="1.2.3",
    started_at_ns=NOON_NS,
    agents=7,
    spool_bytes=2**31,
    max_spool_bytes=10 * 2**30,
    oldest_spooled_at_ns=NOON_NS,
    refused_writes=1,
    requests_per_second=12.5,
    cpu_percent=31.0,
    memory_bytes=2**26,
)


@pytest.fixture
def relay(api: AgentAPI, sessions: SessionFactory, cast: Cast) -> RelayClient:
    return make_relay(sessions, cast.olivia, api.url)


@pytest.fixture
def stranger(sessions: SessionFactory, cast: Cast) -> Appliance:
    with sessions.begin() as session:
        return make_appliance(session, cast.globex, "stranger")


def names(snapshot: RegistrySnapshot | None) -> list[str]:
    assert snapshot is not None
    return sorted(agent.name for agent in snapshot.agents)


def block(sessions: SessionFactory, appliance: Appliance, clock: FrozenClock) -> None:
    with sessions.begin() as session:
        session.get_one(Appliance, appliance.id).revoked_at = clock()
        block_appliance(session, appliance_id=appliance.id)


def code_of(response: requests.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_only_relays_get_an_answer(
    api: AgentAPI, relay: RelayClient, method: str, path: str
) -> None:
    # The agent's own token is none of a relay.
    assert code_of(api.request(method, path)) == (401, "unauthenticated")
    wrong = {"X-Vedette-Relay": "vdr_wrong"}
    assert code_of(api.request(method, path, headers=wrong)) == (401, "unknown_relay")
    assert relay.request(method, path).status_code != 401


@pytest.fixture
def one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_CONCURRENT_WAITS", 1)


@pytest.mark.usefixtures("one_wait")
def test_requests_that_wait_are_bounded(
    api: AgentAPI, relay: RelayClient, sessions: SessionFactory, dgx: Appliance
) -> None:
    answers: list[list[str]] = []
    waiting = threading.Thread(target=lambda: answers.append(relay.changes({dgx.id: 1}, 20)))
    waiting.start()
    query = {"wait_seconds": "0"}

    def refused() -> bool:
        refusal = relay.request("GET", "/relay/v1/registry", params=query)
        return (refusal.status_code, refusal.headers.get("Retry-After")) == (429, "1")

    assert eventually(lambda: api.app.state.watch.waiting == 1)
    assert refused()
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).desired_generation = 2
    waiting.join(timeout=30)
    assert answers == [[dgx.id]]
    assert not refused()


def test_the_registry_has_hashes_of_tokens_and_certificates(
    relay: RelayClient, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    issue(sessions, dgx, clock)
    snapshot = relay.registry()
    assert snapshot is not None
    [agent] = snapshot.agents
    assert (agent.appliance_id, agent.tenant_id, agent.name) == (dgx.id, dgx.tenant_id, "dgx-01")
    assert agent.secret_hash == dgx.secret_hash
    # Its first use is for the portal to admit.
    assert snapshot.certificates == []
    assert "BEGIN CERTIFICATE" in snapshot.authorities
    assert not snapshot.needs_certificate


@pytest.mark.parametrize("settings", [{"require_client_certificate": True}], indirect=True)
def test_the_registry_says_that_certificates_are_needed(relay: RelayClient) -> None:
    snapshot = relay.registry()
    assert snapshot is not None
    assert snapshot.needs_certificate


def test_the_relay_of_a_tenant_learns_of_its_agents_only(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, dgx: Appliance, stranger: Appliance
) -> None:
    of_all = make_relay(sessions, cast.olivia, api.url)
    of_globex = make_relay(sessions, cast.olivia, api.url, tenant_id=cast.globex.id)
    assert names(of_all.registry()) == ["dgx-01", "stranger"]
    assert names(of_globex.registry()) == ["stranger"]
    assert of_globex.changes({stranger.id: 1, dgx.id: 1}) == [dgx.id]


def test_the_registry_is_sent_only_when_it_differs(
    relay: RelayClient, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    first = relay.registry()
    assert first is not None
    assert relay.registry(first.revision) is None
    clock.advance(6)
    assert relay.registry(first.revision) is None
    with sessions.begin() as session:
        make_appliance(session, cast.acme, "new")
    clock.advance(60)
    # At the end of the wait, since the portal admits new agents itself.
    second = relay.registry(first.revision)
    assert names(second) == ["dgx-01", "new"]
    assert names(relay.registry("of another portal", wait_seconds=20)) == ["dgx-01", "new"]


def test_a_blocked_agent_is_told_at_once(
    relay: RelayClient, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    first = relay.registry()
    assert first is not None
    answers: list[RegistrySnapshot | None] = []
    asking = threading.Thread(target=lambda: answers.append(relay.registry(first.revision, 20)))
    started = time.monotonic()
    asking.start()
    block(sessions, dgx, clock)
    clock.advance(1)
    asking.join(timeout=30)
    assert names(answers[0]) == []
    assert time.monotonic() - started < 10


def test_a_snapshot_is_compressed_where_the_relay_accepts_it(relay: RelayClient) -> None:
    packed = relay.request("GET", "/relay/v1/registry")
    plain = relay.request("GET", "/relay/v1/registry", headers={"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.json() == plain.json()


def test_changes_names_all_that_have_another_generation(
    relay: RelayClient, sessions: SessionFactory, cast: Cast, dgx: Appliance
) -> None:
    with sessions.begin() as session:
        others = [make_appliance(session, cast.acme, f"gpu-{n}") for n in range(3)]
        ids = [appliance.id for appliance in others]
        others[0].desired_generation = others[2].desired_generation = 5
    generations = dict.fromkeys((dgx.id, *ids), 1)
    assert set(relay.changes(generations, wait_seconds=20)) == {ids[0], ids[2]}
    assert relay.changes({dgx.id: 1, ids[1]: 1}) == []
    assert relay.changes({}) == []


def test_a_change_ends_the_wait_of_all(
    relay: RelayClient, sessions: SessionFactory, dgx: Appliance
) -> None:
    answers: list[list[str]] = []
    asking = threading.Thread(target=lambda: answers.append(relay.changes({dgx.id: 1}, 20)))
    started = time.monotonic()
    asking.start()
    with sessions.begin() as session:
        session.get_one(Appliance, dgx.id).desired_generation = 2
    asking.join(timeout=30)
    assert answers == [[dgx.id]]
    assert time.monotonic() - started < 10


def test_appliances_that_may_not_poll_have_changed(
    relay: RelayClient,
    sessions: SessionFactory,
    dgx: Appliance,
    stranger: Appliance,
    clock: FrozenClock,
) -> None:
    generations = {dgx.id: 1, stranger.id: 1, "nobody": 1}
    assert relay.changes(generations, wait_seconds=20) == ["nobody"]
    del generations["nobody"]
    with sessions.begin() as session:
        session.get_one(Tenant, stranger.tenant_id).state = TenantState.SUSPENDED
        block_tenant(session, tenant_id=stranger.tenant_id)
    clock.advance(1)
    assert relay.changes(generations, wait_seconds=20) == [stranger.id]


def test_a_request_for_too_many_appliances_is_refused(relay: RelayClient) -> None:
    body = {"generations": {f"appliance {number}": 1 for number in range(20_001)}}
    response = relay.request("POST", "/relay/v1/changes", json=body)
    assert response.status_code == 422
    assert "more than 20000 entries" in response.json()["message"]


@pytest.mark.parametrize("path", ["/relay/v1/changes", "/relay/v1/report"])
@pytest.mark.parametrize("body", [b"", b"[]", b'{"generations": 1}', b"\xff", b'{"version": {}}'])
def test_garbage_is_refused(relay: RelayClient, path: str, body: bytes) -> None:
    assert relay.request("POST", path, data=body).status_code in {400, 422}


def reported(sessions: SessionFactory, relay: RelayClient) -> AccessPoint:
    with sessions() as session:
        return session.get_one(AccessPoint, relay.access_point_id)


def send_report(relay: RelayClient, **changed: object) -> requests.Response:
    body = msgspec.json.encode(msgspec.structs.replace(REPORT, **changed))
    return relay.request("POST", "/relay/v1/report", data=body)


def test_a_report_is_stored(
    relay: RelayClient, sessions: SessionFactory, clock: FrozenClock
) -> None:
    clock.advance(5)
    assert send_report(relay).status_code == 204
    point = reported(sessions, relay)
    assert (point.version, point.agents, point.spool_bytes) == ("1.2.3", 7, 2**31)
    assert (point.seen_at, point.oldest_spooled_at) == (NOON + timedelta(seconds=5), NOON)
    assert send_report(relay, oldest_spooled_at_ns=0, undeliverable_bytes=9).status_code == 204
    assert reported(sessions, relay).undeliverable_bytes == 9
    assert reported(sessions, relay).oldest_spooled_at is None


def test_numbers_of_a_report_are_bounded(relay: RelayClient, sessions: SessionFactory) -> None:
    wild = {"agents": 2**63, "spool_bytes": -1, "memory_bytes": 2**64 - 1, "version": "x" * 5000}
    assert send_report(relay, **wild).status_code == 204
    point = reported(sessions, relay)
    assert (point.agents, point.spool_bytes, point.memory_bytes) == (2**31 - 1, 0, 2**63 - 1)
    assert len(point.version) == 50
    for name in ("started_at_ns", "oldest_spooled_at_ns"):
        assert send_report(relay, **{name: 2**63}).status_code == 422
        assert send_report(relay, **{name: -1}).status_code == 422


def test_a_removed_relay_is_refused_at_once(
    relay: RelayClient, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    assert names(relay.registry()) == ["dgx-01"]
    with sessions.begin() as session:
        delete_access_point(session, scope_of(cast.olivia), relay.access_point_id)
    clock.advance(1)
    for method, path in ENDPOINTS:
        assert code_of(relay.request(method, path)) == (401, "unknown_relay")


def test_a_new_token_replaces_the_old_one(
    relay: RelayClient, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    first = relay.registry()
    assert first is not None
    query = {"revision": first.revision, "wait_seconds": "20"}
    answers: list[requests.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(relay.request("GET", "/relay/v1/registry", params=query))
    )
    asking.start()
    with sessions.begin() as session:
        made = renew_relay_token(session, scope_of(cast.olivia), relay.access_point_id, now=clock())
    clock.advance(1)
    asking.join(timeout=30)
    assert code_of(answers[0]) == (401, "unknown_relay")
    assert relay.request("GET", "/relay/v1/registry").status_code == 401
    renewed = RelayClient(relay.url, relay.access_point_id, made.secret)
    assert names(renewed.registry()) == ["dgx-01"]


def test_a_relay_that_is_given_to_a_tenant_acts_for_it_at_once(
    relay: RelayClient,
    sessions: SessionFactory,
    cast: Cast,
    stranger: Appliance,
    clock: FrozenClock,
) -> None:
    assert names(relay.registry()) == ["dgx-01", "stranger"]
    with sessions.begin() as session:
        change_access_point(
            session,
            scope_of(cast.olivia),
            relay.access_point_id,
            {"tenant_id": stranger.tenant_id},
            public_url=PUBLIC_URL,
            now=clock(),
        )
    clock.advance(1)
    assert names(relay.registry()) == ["stranger"]


def test_the_relay_of_a_suspended_tenant_is_refused(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    relay = make_relay(sessions, cast.olivia, api.url, tenant_id=cast.globex.id)
    assert names(relay.registry()) == []
    with sessions.begin() as session:
        session.get_one(Tenant, cast.globex.id).state = TenantState.SUSPENDED
        block_tenant(session, tenant_id=cast.globex.id)
    clock.advance(1)
    assert relay.request("GET", "/relay/v1/registry").status_code == 401


@pytest.mark.parametrize("settings", [{"auth_failures_per_second_per_address": 0.5}], indirect=True)
def test_guesses_of_tokens_are_limited_by_address(api: AgentAPI, relay: RelayClient) -> None:
    guess = {"X-Vedette-Relay": "vdr_guess"}
    answers = [api.request("GET", "/relay/v1/registry", headers=guess) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 2
    assert relay.request("GET", "/relay/v1/registry").status_code == 200

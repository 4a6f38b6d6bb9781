"""Requests that a relay passes on: with the address and the certificate of the agent."""

from urllib.parse import quote

import pytest
import requests
from sqlalchemy import select
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from core.db import SessionFactory
from protocol.relays import ADDRESS_HEADER, CERTIFICATE_HEADER, TOKEN_HEADER
from protocol.tunnel import TUNNEL_PATH
from tenants.enrollment import create_enrollment_token
from tenants.models import Appliance, AuditEntry
from tests.cast import Cast, FrozenClock, make_appliance, scope_of
from tests.fixtures.signing_requests import signing_request
from tests.unit.access.conftest import OTHER_SECRET, SECRET, AgentAPI
from tests.unit.access.relays import RelayClient, make_relay
from tests.unit.access.test_client_certificates import STRICT, issue
from tests.unit.tenants.helpers import DAY

ADDRESS = "203.0.113.7"


@pytest.fixture
def relay(api: AgentAPI, sessions: SessionFactory, cast: Cast) -> RelayClient:
    return make_relay(sessions, cast.olivia, api.url)


@pytest.fixture
def of_globex(api: AgentAPI, sessions: SessionFactory, cast: Cast) -> RelayClient:
    with sessions.begin() as session:
        make_appliance(session, cast.globex, "stranger")
    return make_relay(sessions, cast.olivia, api.url, tenant_id=cast.globex.id)


def passed_on(
    relay: RelayClient,
    path: str = "/api/v2/write",
    method: str = "POST",
    *,
    secret: str = SECRET,
    certificate: str = "",
    address: str = ADDRESS,
    **details: object,
) -> requests.Response:
    headers = {ADDRESS_HEADER: address}
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    if certificate:
        headers[CERTIFICATE_HEADER] = quote(certificate, safe="")
    return relay.request(method, path, headers=headers, **details)


def code_of(response: requests.Response) -> tuple[int, str]:
    body = response.json()
    return response.status_code, body.get("reason", body["code"])


def test_the_agent_authenticates_as_always(relay: RelayClient) -> None:
    assert passed_on(relay).status_code == 204
    assert passed_on(relay, "/agent/v1/desired", "GET").status_code == 200
    assert code_of(passed_on(relay, secret="vda_wrong")) == (401, "unauthenticated")
    assert code_of(passed_on(relay, secret="")) == (401, "unauthenticated")


def test_a_wrong_token_of_a_relay_is_refused(relay: RelayClient) -> None:
    wrong = RelayClient(relay.url, relay.access_point_id, "vdr_wrong")
    assert code_of(passed_on(wrong)) == (401, "unknown_relay")
    assert code_of(passed_on(wrong, "/agent/v1/desired", "GET")) == (401, "unknown_relay")


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_the_relay_has_verified_the_certificate(
    relay: RelayClient, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    certificate = issue(sessions, dgx, clock)
    assert passed_on(relay, certificate=certificate).status_code == 204
    assert passed_on(relay, certificate=certificate, secret="").status_code == 204
    assert code_of(passed_on(relay)) == (401, "certificate_needed")
    assert code_of(passed_on(relay, certificate="no PEM")) == (401, "bad_certificate")
    assert code_of(passed_on(relay, certificate=certificate, secret=OTHER_SECRET))[0] == 401


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_what_a_proxy_says_of_the_relays_connection_is_not_of_the_agent(
    relay: RelayClient, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    escaped = quote(issue(sessions, dgx, clock), safe="")
    of_proxy = {
        "X-Vedette-Proxy": "what nginx and the portal share",
        "X-Vedette-Client-Verify": "NONE",
    }
    headers = {**of_proxy, ADDRESS_HEADER: ADDRESS, CERTIFICATE_HEADER: escaped}
    assert relay.request("POST", "/api/v2/write", headers=headers).status_code == 204
    headers["X-Vedette-Client-Verify"] = "SUCCESS"
    headers["X-Vedette-Client-Certificate"] = headers.pop(CERTIFICATE_HEADER)
    headers["Authorization"] = f"Bearer {SECRET}"
    refused = relay.request("POST", "/api/v2/write", headers=headers)
    assert code_of(refused) == (401, "certificate_needed")


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_without_a_token_the_headers_of_relays_mean_nothing(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    escaped = quote(issue(sessions, dgx, clock), safe="")
    headers = {ADDRESS_HEADER: ADDRESS, CERTIFICATE_HEADER: escaped}
    assert code_of(api.write(b"", headers=headers)) == (401, "certificate_needed")


@pytest.mark.parametrize("settings", [{"auth_failures_per_second_per_address": 0.5}], indirect=True)
def test_failures_count_for_the_address_of_the_agent(relay: RelayClient) -> None:
    guesses = [passed_on(relay, secret=f"vda_{number}").status_code for number in range(6)]
    assert guesses == [401] * 5 + [429]
    assert passed_on(relay, secret="vda_other", address="198.51.100.9").status_code == 401
    assert passed_on(relay).status_code == 204


@pytest.mark.parametrize("address", ["", "portal.example", "1.2.3.4, 5.6.7.8"])
def test_a_client_without_an_address_is_a_bad_request(relay: RelayClient, address: str) -> None:
    assert code_of(passed_on(relay, address=address)) == (400, "invalid")


def test_an_enrollment_is_recorded_with_the_address_of_the_host(
    relay: RelayClient, of_globex: RelayClient, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        _, secret = create_enrollment_token(
            session, scope_of(cast.alice), lifetime=DAY, now=cast.alice.created_at
        )
    body = {"token": secret, "name": "gpu-09", "inventory": {"hostname": "x"}}
    refused = passed_on(of_globex, "/agent/v1/enroll", secret="", json=body)
    assert code_of(refused) == (401, "foreign_relay")
    body["csr"] = signing_request()
    assert passed_on(relay, "/agent/v1/enroll", secret="", json=body).status_code == 201
    with sessions() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.target_name == "gpu-09"))
        assert {entry.address for entry in entries} == {ADDRESS}


def test_the_relay_of_a_tenant_passes_on_requests_of_its_agents_only(
    of_globex: RelayClient,
) -> None:
    assert passed_on(of_globex, secret=OTHER_SECRET).status_code == 204
    for method, path in [
        ("POST", "/api/v2/write"),
        ("GET", "/agent/v1/desired"),
        ("POST", "/agent/v1/heartbeat"),
        ("POST", "/agent/v1/certificate"),
        ("POST", "/write"),
    ]:
        assert code_or_error(passed_on(of_globex, path, method)) == 401, path


def code_or_error(response: requests.Response) -> int:
    assert "another tenant" in response.text
    return response.status_code


def test_tunnels_are_passed_on(relay: RelayClient) -> None:
    address = f"{relay.url.replace('http', 'ws')}{TUNNEL_PATH}"
    headers = {TOKEN_HEADER: relay.secret, ADDRESS_HEADER: ADDRESS}
    agent = {"Authorization": f"Bearer {SECRET}"}
    for sent in ({**headers, TOKEN_HEADER: "vdr_wrong"} | agent, headers, headers | agent):
        # The last one is refused, too, since nobody has asked for a tunnel.
        with pytest.raises(InvalidStatus) as refusal, connect(address, additional_headers=sent):
            pass
        assert refusal.value.response.status_code == 403

"""Client certificates at the agent API, as a proxy in front passes them on."""

from datetime import timedelta
from urllib.parse import quote

import pytest
import requests

from core.db import SessionFactory
from tenants.enrollment import create_enrollment_token
from tenants.fleet.agents import fence_appliance
from tenants.models import Appliance, ApplianceCertificate
from tenants.pki.admission import revoke_certificate
from tenants.pki.certificates import Issuer, issue_certificate
from tests.cast import BOX, Cast, FrozenClock, make_appliance, scope_of
from tests.fixtures.signing_requests import signing_request
from tests.unit.access.conftest import OTHER_SECRET, SECRET, AgentAPI, eventually

PROXY_SECRET = "what nginx and the portal share"
BEHIND_PROXY = {"proxy_secret": PROXY_SECRET}
STRICT = {**BEHIND_PROXY, "require_client_certificate": True}
ISSUER = Issuer(BOX, timedelta(days=7))


@pytest.fixture
def certificate(sessions: SessionFactory, dgx: Appliance, clock: FrozenClock) -> str:
    """A certificate of `dgx`, in PEM form."""
    return issue(sessions, dgx, clock)


def issue(sessions: SessionFactory, appliance: Appliance, clock: FrozenClock) -> str:
    with sessions.begin() as session:
        present = session.merge(appliance, load=False)
        issued = issue_certificate(session, ISSUER, present, csr=signing_request(), now=clock.now)
    return issued.certificate


def shown(
    api: AgentAPI, certificate: str, *, secret: str | None = None, verdict: str = "SUCCESS"
) -> requests.Response:
    """Write nothing, with a certificate that the proxy has verified."""
    return api.write(
        b"",
        headers={
            "Authorization": f"Bearer {secret}" if secret else None,
            "X-Vedette-Proxy": PROXY_SECRET,
            "X-Vedette-Client-Verify": verdict,
            "X-Vedette-Client-Certificate": quote(certificate, safe=""),
        },
    )


def reason_of(response: requests.Response) -> str:
    assert response.status_code == 401, response.text
    return str(response.json()["reason"])


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_a_certificate_is_enough(api: AgentAPI, certificate: str) -> None:
    assert shown(api, certificate).status_code == 204
    assert shown(api, certificate, secret=SECRET).status_code == 204


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
@pytest.mark.parametrize("verdict", ["NONE", "FAILED:certificate has expired"])
def test_what_the_proxy_could_not_verify_is_no_certificate(
    api: AgentAPI, certificate: str, verdict: str
) -> None:
    expected = "certificate_needed" if verdict == "NONE" else "bad_certificate"
    assert reason_of(shown(api, certificate, secret=SECRET, verdict=verdict)) == expected


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_the_secret_alone_renews_a_certificate_where_other_requests_need_one(api: AgentAPI) -> None:
    assert reason_of(api.write(b"")) == "certificate_needed"
    renewed = api.request("POST", "/agent/v1/certificate", json={"csr": signing_request()})
    assert renewed.status_code == 200
    assert "BEGIN CERTIFICATE" in renewed.json()["certificate"]
    assert renewed.json()["replaces_secret"] is True
    assert shown(api, renewed.json()["certificate"]).status_code == 204


@pytest.mark.parametrize("settings", [BEHIND_PROXY], indirect=True)
def test_a_secret_suffices_where_no_certificate_is_required(api: AgentAPI) -> None:
    assert api.write(b"").status_code == 204


@pytest.mark.parametrize("settings", [BEHIND_PROXY], indirect=True)
def test_a_certificate_and_a_secret_of_two_appliances_are_refused(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, certificate: str
) -> None:
    with sessions.begin() as session:
        make_appliance(session, session.merge(cast.globex), "stranger")
    answer = shown(api, certificate, secret=OTHER_SECRET)
    assert reason_of(answer) == "two_identities"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Vedette-Client-Verify": "SUCCESS"},
        {"X-Vedette-Client-Certificate": "x"},
        {"X-Vedette-Proxy": "guessed", "X-Vedette-Client-Verify": "SUCCESS"},
        {"X-Vedette-Proxy": ""},
    ],
)
@pytest.mark.parametrize("settings", [BEHIND_PROXY, {}], indirect=True)
def test_a_proxys_headers_without_its_secret_are_refused(
    api: AgentAPI, headers: dict[str, str]
) -> None:
    assert reason_of(api.write(b"", headers=headers)) == "unknown_proxy"


@pytest.mark.parametrize("settings", [BEHIND_PROXY], indirect=True)
def test_what_is_no_certificate_is_refused(api: AgentAPI) -> None:
    for odd in ("", "hello", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"):
        assert reason_of(shown(api, odd)) == "bad_certificate"


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_a_revoked_certificate_is_rejected_after_the_next_check_of_the_revision(
    *,
    api: AgentAPI,
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
    certificate: str,
) -> None:
    assert shown(api, certificate).status_code == 204
    with sessions.begin() as session:
        ident = session.query(ApplianceCertificate.id).scalar()
        revoke_certificate(session, scope_of(cast.alice), ident, now=clock.now)
    clock.advance(0.25)
    answer = shown(api, certificate)
    assert reason_of(answer) == "certificate_refused"
    assert "was revoked" in answer.json()["message"]


@pytest.mark.parametrize("settings", [BEHIND_PROXY], indirect=True)
def test_an_expired_certificate_is_refused_on_the_second(
    api: AgentAPI, clock: FrozenClock, certificate: str
) -> None:
    clock.advance(timedelta(days=7).total_seconds() - 1)
    assert shown(api, certificate).status_code == 204
    clock.advance(1)
    assert "expired" in shown(api, certificate).json()["message"]


def test_a_fence_ends_a_long_poll_and_refuses_it(
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock
) -> None:
    generation = api.request("GET", "/agent/v1/desired").json()["generation"]
    with sessions.begin() as session:
        fence_appliance(session, session.get_one(Appliance, dgx.id), reason="x", now=clock.now)
    clock.advance(0.25)
    path = f"/agent/v1/desired?generation={generation}&wait_seconds=30"
    answer = api.request("GET", path)
    assert answer.status_code == 401
    assert "is fenced" in answer.json()["message"]


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_the_use_of_a_replaced_certificate_is_recorded_though_it_is_rejected(
    *,
    api: AgentAPI,
    sessions: SessionFactory,
    dgx: Appliance,
    clock: FrozenClock,
    certificate: str,
) -> None:
    assert shown(api, certificate).status_code == 204
    newer = issue(sessions, dgx, clock)
    assert shown(api, newer).status_code == 204
    clock.advance(3600)
    assert reason_of(shown(api, certificate)) == "certificate_refused"
    with sessions.begin() as session:
        assert session.get_one(Appliance, dgx.id).fenced_at == clock.now
    clock.advance(0.25)
    assert eventually(lambda: shown(api, newer).status_code == 401)


def test_a_request_that_can_not_be_signed_spends_no_token(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, token = create_enrollment_token(
            session, scope_of(cast.alice), lifetime=timedelta(hours=1), now=clock.now
        )
    body = {"token": token, "name": "new", "inventory": {"hostname": "new"}}
    refused = api.request("POST", "/agent/v1/enroll", json={**body, "csr": "nonsense"})
    assert refused.status_code == 422
    assert "csr" in refused.json()["errors"]
    enrolled = api.request("POST", "/agent/v1/enroll", json={**body, "csr": signing_request()})
    assert enrolled.status_code == 201
    assert enrolled.json()["certificate"]["lifetime_seconds"] == 7 * 24 * 3600


@pytest.mark.parametrize("settings", [STRICT], indirect=True)
def test_a_stolen_secret_gets_no_certificate_beside_one_that_was_used(
    api: AgentAPI, certificate: str
) -> None:
    assert shown(api, certificate).status_code == 204
    refused = api.request("POST", "/agent/v1/certificate", json={"csr": signing_request()})
    assert refused.status_code == 401
    assert refused.json()["code"] == "certificate_needed"


@pytest.mark.parametrize("settings", [BEHIND_PROXY], indirect=True)
def test_a_secret_renews_a_certificate_where_none_is_required(api: AgentAPI) -> None:
    for _ in range(2):
        renewed = api.request("POST", "/agent/v1/certificate", json={"csr": signing_request()})
        assert renewed.status_code == 200
        assert shown(api, renewed.json()["certificate"]).status_code == 204

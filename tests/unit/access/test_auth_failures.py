"""An address that is refused too often has to wait; whoever is known there does not."""

from datetime import timedelta

import pytest
import requests

from access.app import create_access_app
from core.db import SessionFactory
from core.settings import ServerSettings
from core.shared_limits import SharedLimits
from tenants.enrollment import create_enrollment_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.joined_brokers import joined_brokers
from tests.fixtures.serving import Serving
from tests.unit.access.conftest import AgentAPI
from timeseries.store import Store

# A bucket holds one, and no other comes while a test lasts.
ONE_REFUSAL = {"auth_failures_per_second_per_address": 0.0001}
GUESS = {"Authorization": "Bearer vda_guess"}
ENROLL = {"token": "vde_guess", "name": "new", "inventory": {"hostname": "new"}}

one_refusal = pytest.mark.parametrize("settings", [ONE_REFUSAL], indirect=True)


@one_refusal
def test_the_second_guess_at_a_secret_has_to_wait(api: AgentAPI) -> None:
    assert api.write(b"", headers=GUESS).status_code == 401
    waits = api.write(b"", headers={"Authorization": "Bearer vda_other"})
    assert waits.status_code == 429
    assert waits.json()["reason"] == "too_many_requests"
    assert int(waits.headers["Retry-After"]) > 60


@one_refusal
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/agent/v1/heartbeat"),
        ("POST", "/agent/v1/certificate"),
        ("POST", "/write"),
        ("GET", "/agent/v1/desired"),
        ("POST", "/collectd"),
        ("POST", "/v1/metrics"),
    ],
)
def test_every_address_counts_and_waits(api: AgentAPI, method: str, path: str) -> None:
    assert api.request(method, path, headers=GUESS).status_code == 401
    assert api.request(method, path, headers=GUESS).status_code == 429


@one_refusal
def test_guesses_at_enrollment_tokens_wait_before_they_are_looked_up(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, secret = create_enrollment_token(
            session, scope_of(cast.alice), lifetime=timedelta(hours=1), now=clock.now
        )
    assert api.request("POST", "/agent/v1/enroll", json=ENROLL).status_code == 401
    right = api.request("POST", "/agent/v1/enroll", json={**ENROLL, "token": secret})
    assert right.status_code == 429


@one_refusal
def test_a_known_agent_at_the_same_address_is_not_held_up(api: AgentAPI) -> None:
    for _ in range(5):
        api.write(b"", headers=GUESS)
    assert api.write(b"").status_code == 204


@one_refusal
def test_requests_without_any_proof_count_too(api: AgentAPI) -> None:
    assert api.write(b"", headers={"Authorization": None}).status_code == 401
    assert api.write(b"", headers={"Authorization": None}).status_code == 429


@pytest.mark.parametrize("settings", [{"auth_failures_per_second_per_address": 0.0}], indirect=True)
def test_without_a_limit_every_rejection_is_logged(api: AgentAPI) -> None:
    assert {api.write(b"", headers=GUESS).status_code for _ in range(100)} == {401}


@one_refusal
def test_an_address_that_guesses_waits_at_all_processes(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> None:
    limits = [SharedLimits(broker) for broker in joined_brokers()]
    apps = [
        create_access_app(
            settings=settings, sessions=sessions, store=store, clock=clock, limits=shared
        )
        for shared in limits
    ]
    with Serving(apps[0]) as first, Serving(apps[1]) as second:
        assert (
            requests.get(f"{first}/agent/v1/desired", headers=GUESS, timeout=60).status_code == 401
        )
        limits[0].send()
        assert (
            requests.get(f"{second}/agent/v1/desired", headers=GUESS, timeout=60).status_code == 429
        )

"""A user or an address above the rate limit gets 429; others do not."""

from dataclasses import replace

import pytest
from flask import Flask

from core.db import SessionFactory
from core.rate_limits import BURST_SECONDS
from core.settings import ServerSettings
from core.shared_limits import SharedLimits
from portal.app import create_portal
from tests.cast import Cast, FrozenClock
from tests.fixtures.joined_brokers import joined_brokers
from tests.unit.portal.conftest import Browser, MakeToken
from timeseries.store import Store

PER_SECOND = 0.5  # bursts of five
BURST = int(PER_SECOND * BURST_SECONDS)


def portal_with(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    limits: SharedLimits | None = None,
) -> Flask:
    return create_portal(
        settings, sessions=sessions, store=store, clock=FrozenClock(), limits=limits
    )


@pytest.fixture
def by_user(settings: ServerSettings, sessions: SessionFactory, store: Store) -> Flask:
    """A portal that limits users alone."""
    tight = replace(
        settings, requests_per_second_per_user=PER_SECOND, requests_per_second_per_address=0.0
    )
    return portal_with(tight, sessions, store)


@pytest.fixture
def by_address(settings: ServerSettings, sessions: SessionFactory, store: Store) -> Flask:
    """A portal that limits addresses alone."""
    tight = replace(
        settings, requests_per_second_per_user=0.0, requests_per_second_per_address=PER_SECOND
    )
    return portal_with(tight, sessions, store)


def test_a_user_above_the_limit_is_answered_429_with_retry_after(
    by_user: Flask, cast: Cast, make_token: MakeToken
) -> None:
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    client = by_user.test_client()
    answers = [client.get("/api/v1/jobs", headers=headers) for _ in range(BURST + 1)]
    assert [answer.status_code for answer in answers] == [200] * BURST + [429]
    refused = answers[-1]
    assert refused.json is not None
    assert refused.json["code"] == "too_many_requests"
    assert 1 <= int(refused.headers["Retry-After"]) <= BURST_SECONDS


def test_all_tokens_of_a_user_share_one_limit_and_other_users_have_their_own(
    by_user: Flask, cast: Cast, make_token: MakeToken
) -> None:
    client = by_user.test_client()
    statuses = [
        client.get("/api/v1/jobs", headers={"Authorization": f"Bearer {secret}"}).status_code
        for secret in [make_token(cast.alice) for _ in range(BURST + 1)]
    ]
    assert statuses == [200] * BURST + [429]
    headers = {"Authorization": f"Bearer {make_token(cast.bob)}"}
    assert client.get("/api/v1/jobs", headers=headers).status_code == 200


def test_an_address_that_guesses_tokens_is_blocked_before_they_are_checked(
    by_address: Flask, cast: Cast, make_token: MakeToken
) -> None:
    client = by_address.test_client()
    wrong = {"Authorization": "Bearer vdt_guessed"}
    statuses = [client.get("/api/v1/jobs", headers=wrong).status_code for _ in range(BURST + 1)]
    assert statuses == [401] * BURST + [429]
    right = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    assert client.get("/api/v1/jobs", headers=right).status_code == 429
    elsewhere = {"REMOTE_ADDR": "192.0.2.9"}
    answer = client.get("/api/v1/jobs", headers=right, environ_overrides=elsewhere)
    assert answer.status_code == 200


def test_browsers_get_the_429_as_a_page_and_static_files_are_not_limited(by_address: Flask) -> None:
    browser = Browser(by_address.test_client())
    answers = [browser.get("/login") for _ in range(BURST + 1)]
    assert answers[-1].status_code == 429
    assert answers[-1].mimetype == "text/html"
    with browser.get("/static/vedette.css") as sheet:
        assert sheet.status_code == 200
    assert browser.get("/health").status_code == 200


def test_a_user_has_one_rate_at_all_portals_together(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    make_token: MakeToken,
) -> None:
    tight = replace(
        settings,
        requests_per_second_per_user=PER_SECOND,
        requests_per_second_per_address=3 * PER_SECOND,
    )
    limits = [SharedLimits(broker) for broker in joined_brokers()]
    clients = [portal_with(tight, sessions, store, shared).test_client() for shared in limits]
    headers = {"Authorization": f"Bearer {make_token(cast.alice)}"}
    statuses = []
    for number in range(BURST + 2):
        statuses.append(clients[number % 2].get("/api/v1/jobs", headers=headers).status_code)
        limits[number % 2].send()
    assert statuses == [200] * BURST + [429] * 2
    headers = {"Authorization": f"Bearer {make_token(cast.bob)}"}
    answers = [client.get("/api/v1/jobs", headers=headers) for client in clients]
    assert [answer.status_code for answer in answers] == [200, 200]

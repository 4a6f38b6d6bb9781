"""Users and tenants have shares of the portal's threads, wherever their requests come from."""

import asyncio
from contextlib import ExitStack

import pytest
import requests
from starlette.types import Scope

from core.db import SessionFactory
from portal.auth.guard import SIGNED_IN
from serving import portal_shares
from serving.portal_shares import IS_BUSY, PortalShares
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.polling import eventually

THREADS = 16
ADDRESS = "192.0.2.1"


class Clock:
    """Stands in for `time`."""

    seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


def request_of(credential: str) -> Scope:
    return {"headers": [(b"authorization", f"Bearer {credential}".encode())]}


@pytest.fixture
def shares() -> PortalShares:
    """The shares after requests of alice, bob (both of acme) and charlie (of globex)."""
    shares = PortalShares(THREADS)
    for name, tenant in (("alice", "acme"), ("bob", "acme"), ("charlie", "globex")):
        shares.remember({**request_of(name), SIGNED_IN: (name, tenant)})
    return shares


def started(shares: PortalShares, *credentials: str) -> list[str]:
    """Return whose requests get a thread at once, of many that come from one address."""

    async def run() -> list[str]:
        names: list[str] = []

        async def start(credential: str) -> None:
            await shares.enter(request_of(credential), ADDRESS, turns)
            names.append(credential)

        turns = ExitStack()
        tasks = [asyncio.create_task(start(credential)) for credential in credentials]
        await asyncio.wait(tasks, timeout=0)
        for _ in range(10):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return names

    return asyncio.run(run())


def test_a_user_has_a_quarter(shares: PortalShares) -> None:
    assert started(shares, *["alice"] * 20) == ["alice"] * 4


def test_users_behind_one_address_do_not_wait_for_each_other(shares: PortalShares) -> None:
    names = started(shares, *["alice"] * 20, "bob", "charlie", "nobody")
    assert names[4:] == ["bob", "charlie", "nobody"]


def test_a_tenant_has_half_whatever_the_number_of_its_users(shares: PortalShares) -> None:
    for number in range(5):
        shares.remember({**request_of(f"user {number}"), SIGNED_IN: (f"user {number}", "acme")})
    names = started(shares, *[f"user {number % 5}" for number in range(40)], "charlie")
    assert len(names) == 9
    assert names[-1] == "charlie"


def test_a_user_of_much_computing_time_has_one_thread(
    shares: PortalShares, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(portal_shares, "time", clock)
    shares.charge({SIGNED_IN: ("alice", "acme")}, ADDRESS, 0.9)
    assert started(shares, *["alice"] * 20) == ["alice"] * 4
    shares.charge({SIGNED_IN: ("alice", "acme")}, ADDRESS, 0.9)
    # It pauses first.
    assert started(shares, "alice", "bob") == ["bob"]
    clock.seconds += 4.0
    assert sorted(started(shares, *["alice"] * 20, "bob")) == ["alice", "bob"]
    clock.seconds += 10.0
    assert started(shares, *["alice"] * 20) == ["alice"] * 4


def test_a_costly_request_does_not_keep_its_user_waiting(
    shares: PortalShares, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(portal_shares, "time", clock)
    shares.charge({SIGNED_IN: ("alice", "acme")}, ADDRESS, 60.0)
    assert started(shares, "alice") == []
    clock.seconds += portal_shares.MAX_PAUSE_SECONDS
    assert started(shares, "alice") == ["alice"]


def is_busy(shares: PortalShares, credential: str, *, address: str = ADDRESS) -> bool:
    """Return whether the next request of a sender would give way to others."""
    scope = request_of(credential)

    async def enter() -> None:
        with ExitStack() as turns:
            await shares.enter(scope, address, turns)

    asyncio.run(enter())
    return bool(scope[IS_BUSY])


def test_all_users_of_a_busy_tenant_give_way(shares: PortalShares) -> None:
    for number in range(50):
        shares.charge({SIGNED_IN: (f"user {number}", "acme")}, ADDRESS, 0.1)
    assert is_busy(shares, "bob")
    assert not is_busy(shares, "charlie")


def test_those_without_a_credential_behind_a_busy_address_give_way(shares: PortalShares) -> None:
    shares.charge({}, ADDRESS, 2.0)
    assert is_busy(shares, "nobody")
    assert not is_busy(shares, "nobody", address="192.0.2.2")
    assert not is_busy(shares, "charlie")


def test_requests_without_a_credential_that_was_valid_share_their_address(
    shares: PortalShares,
) -> None:
    assert len(started(shares, *[f"guess {number}" for number in range(20)])) == 4


def test_few_credentials_are_remembered(
    shares: PortalShares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal_shares, "MAX_REMEMBERED", 3)
    shares.remember({**request_of("dave"), SIGNED_IN: ("dave", "globex")})
    assert len(started(shares, *["alice"] * 2, *["guess"] * 20)) == 4


def test_the_portal_reports_the_sender_of_a_request(
    url: str, sessions: SessionFactory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: list[object] = []

    def remember(_shares: PortalShares, scope: Scope) -> None:
        remembered.append(scope.get(SIGNED_IN))

    monkeypatch.setattr(PortalShares, "remember", remember)
    with sessions.begin() as session:
        secret = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)[1]
    headers = {"Authorization": f"Bearer {secret}"}
    assert requests.get(f"{url}/api/v1/jobs", headers=headers, timeout=60).ok
    assert requests.get(f"{url}/login", timeout=60).ok
    # An answer reaches its client before.
    assert eventually(lambda: remembered == [(cast.bob.id, cast.acme.id), None])

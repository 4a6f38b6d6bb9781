"""Every address of the agents' door as asked for with credentials that are not an agent's.

The addresses are taken from the app, so that a new one is visited without being named here.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest

from access.app import AccessApp
from core.db import SessionFactory
from tenants.entry.enrolment_tokens import create_enrolment_token
from tenants.models import Appliance, TenantState
from tenants.people.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.access.conftest import SECRET, Door

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Without credentials these tell nothing and change nothing.
OPEN = {"/health", "/ping", "/query", "/agent/v1/enroll", "/agent/v1/authority"}

ShutOut = Callable[[Appliance, FrozenClock], None]


def addresses(app: AccessApp) -> list[str]:
    """Return every address that asks who is there, with an id in the place of what varies."""
    return sorted(path.replace("{attempt_id}", "some-id") for path in app.paths - OPEN)


def statuses(door: Door, secret: str) -> dict[tuple[str, str], int]:
    """Return what each method of each address answers to a secret, but 405."""
    found = {}
    for path in addresses(door.app):
        for method in METHODS:
            answer = door.request(method, path, headers={"Authorization": f"Bearer {secret}"})
            if answer.status_code != 405:
                found[method, path] = answer.status_code
    return found


def refused_everywhere(door: Door, secret: str) -> bool:
    """Whether every address answers 401, and there are some."""
    found = statuses(door, secret)
    assert len(found) >= len(addresses(door.app))
    return set(found.values()) == {401}


def test_a_users_api_token_opens_nothing_here(
    door: Door, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, secret = create_api_token(session, scope_of(cast.alice), name="cli", now=clock.now)
    assert refused_everywhere(door, secret)


def test_an_enrolment_token_opens_nothing_but_enrolment(
    door: Door, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, secret = create_enrolment_token(
            session, scope_of(cast.alice), lifetime=timedelta(days=1), now=clock.now
        )
    assert refused_everywhere(door, secret)


def revoke(appliance: Appliance, clock: FrozenClock) -> None:
    appliance.revoked_at = clock.now


def retire(appliance: Appliance, clock: FrozenClock) -> None:
    appliance.retired_at = clock.now


def fence(appliance: Appliance, clock: FrozenClock) -> None:
    appliance.fenced_at = clock.now


def suspend(appliance: Appliance, _clock: FrozenClock) -> None:
    appliance.tenant.state = TenantState.SUSPENDED


def close(appliance: Appliance, _clock: FrozenClock) -> None:
    appliance.tenant.state = TenantState.CLOSED


@pytest.mark.parametrize("shut_out", [revoke, retire, fence, suspend, close])
def test_an_agent_that_was_shut_out_opens_nothing(
    door: Door, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock, shut_out: ShutOut
) -> None:
    with sessions.begin() as session:
        shut_out(session.get_one(Appliance, dgx.id), clock)
    assert refused_everywhere(door, SECRET)

"""Every address of the agent API rejects credentials that are not an agent's.

The addresses are read from the app, so that new ones are tested too.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from core.db import SessionFactory
from tenants.enrollment import create_enrollment_token
from tenants.models import Appliance, TenantState
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.access.conftest import SECRET, AgentAPI

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# These need no credentials.
OPEN = {"/health", "/ready", "/ping", "/query", "/agent/v1/enroll", "/agent/v1/authority"}

Block = Callable[[Appliance, FrozenClock], None]


def addresses(app: Starlette) -> list[str]:
    """Return every address that requires credentials, with an id for each parameter."""
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    return sorted(path.replace("{attempt_id}", "some-id") for path in paths - OPEN)


def statuses(api: AgentAPI, secret: str) -> dict[tuple[str, str], int]:
    """Return what each method of each address answers to a secret, but 405."""
    answered = {}
    for path in addresses(api.app):
        for method in METHODS:
            answer = api.request(method, path, headers={"Authorization": f"Bearer {secret}"})
            if answer.status_code != 405:
                answered[method, path] = answer.status_code
    return answered


def refused_everywhere(api: AgentAPI, secret: str) -> bool:
    """Return whether every address responds with 401."""
    answered = statuses(api, secret)
    assert len(answered) >= len(addresses(api.app))
    return set(answered.values()) == {401}


def test_a_users_api_token_opens_nothing_here(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, secret = create_api_token(session, scope_of(cast.alice), name="cli", now=clock.now)
    assert refused_everywhere(api, secret)


def test_an_enrolment_token_opens_nothing_but_enrollment(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        _, secret = create_enrollment_token(
            session, scope_of(cast.alice), lifetime=timedelta(days=1), now=clock.now
        )
    assert refused_everywhere(api, secret)


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
    api: AgentAPI, sessions: SessionFactory, dgx: Appliance, clock: FrozenClock, shut_out: Block
) -> None:
    with sessions.begin() as session:
        shut_out(session.get_one(Appliance, dgx.id), clock)
    assert refused_everywhere(api, SECRET)

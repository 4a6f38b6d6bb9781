"""API tokens: who they act as, how much they may do, and how long."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import APIToken, Role
from tenants.permissions import Permission
from tenants.users.tokens import (
    TokenLimits,
    create_api_token,
    list_api_tokens,
    revoke_api_token,
    revoke_older_tokens,
    scopes_for,
    token_principal,
)
from tests.cast import NOON, Cast, scope_of
from tests.unit.tenants.helpers import DAY

SECOND = timedelta(seconds=1)


def test_a_token_acts_as_its_user_until_it_is_revoked(session: Session, cast: Cast) -> None:
    token, secret = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)
    principal = token_principal(session, secret, now=NOON)
    assert principal is not None
    assert principal.user.id == cast.bob.id
    revoke_api_token(session, scope_of(cast.bob), token.id, now=NOON)
    assert token_principal(session, secret, now=NOON) is None


def test_revoking_twice_keeps_the_first_instant(session: Session, cast: Cast) -> None:
    token, _ = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)
    for now in (NOON, NOON + DAY):
        revoke_api_token(session, scope_of(cast.bob), token.id, now=now)
    assert token.revoked_at == NOON


def test_everybody_sees_and_revokes_only_their_own_tokens(session: Session, cast: Cast) -> None:
    token, _ = create_api_token(session, scope_of(cast.bob), name="ci", now=NOON)
    for other in (cast.alice, cast.charlie, cast.olivia):
        assert list_api_tokens(session, scope_of(other)).items == []
        with pytest.raises(NotFoundError):
            revoke_api_token(session, scope_of(other), token.id, now=NOON)
    assert list_api_tokens(session, scope_of(cast.bob)).items == [token]


def test_a_token_needs_a_name(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        create_api_token(session, scope_of(cast.bob), name="  ", now=NOON)
    assert list(caught.value.errors) == ["name"]
    assert session.scalars(select(APIToken)).all() == []


def test_an_unknown_token_is_nobody(session: Session) -> None:
    assert token_principal(session, "vdt_unknown", now=NOON) is None


def test_a_token_lasts_until_it_expires(session: Session, cast: Cast) -> None:
    _, secret = create_api_token(
        session, scope_of(cast.bob), name="ci", limits=TokenLimits(lifetime=DAY), now=NOON
    )
    assert token_principal(session, secret, now=NOON + DAY - SECOND) is not None
    assert token_principal(session, secret, now=NOON + DAY) is None


def test_a_token_may_do_what_its_scopes_and_its_user_may(session: Session, cast: Cast) -> None:
    limits = TokenLimits(scopes=("jobs",))
    _, secret = create_api_token(session, scope_of(cast.bob), name="ci", limits=limits, now=NOON)
    principal = token_principal(session, secret, now=NOON)
    assert principal is not None
    assert principal.scope.allows(Permission.SUBMIT_JOBS)
    assert not principal.scope.allows(Permission.STOP_ANY_JOB)
    assert not principal.scope.allows(Permission.EDIT_ALERTS)


def test_a_limited_token_makes_no_token(session: Session, cast: Cast) -> None:
    limits = TokenLimits(scopes=("users",))
    _, secret = create_api_token(session, scope_of(cast.alice), name="ci", limits=limits, now=NOON)
    principal = token_principal(session, secret, now=NOON)
    assert principal is not None
    with pytest.raises(ForbiddenError, match="limited to users"):
        create_api_token(session, principal.scope, name="wider", now=NOON)


def test_scopes_are_offered_by_role() -> None:
    assert scopes_for(Role.VIEWER) == ["read"]
    assert scopes_for(Role.MEMBER) == [
        *("read", "jobs", "shells", "images", "datasets", "alerts", "reports", "dashboards"),
        "support",
    ]
    assert scopes_for(Role.ADMIN) == [
        "read",
        "jobs",
        "shells",
        "images",
        "datasets",
        "alerts",
        "reports",
        "dashboards",
        "appliances",
        "projects",
        "users",
        "support",
        "market",
        "billing",
        "audit",
    ]
    assert scopes_for(Role.BILLING) == ["read", "support", "billing"]
    assert scopes_for(Role.OPERATOR) == [
        *("read", "images", "dashboards", "users", "support", "market", "billing", "audit"),
        "operator",
    ]


@pytest.mark.parametrize("name", ["operator", "users", "everything"])
def test_a_scope_that_is_of_no_use_to_its_user_is_refused(
    session: Session, cast: Cast, name: str
) -> None:
    limits = TokenLimits(scopes=("read", name))
    with pytest.raises(InvalidInputError, match="choose among read, jobs, shells") as caught:
        create_api_token(session, scope_of(cast.bob), name="ci", limits=limits, now=NOON)
    assert list(caught.value.errors) == ["scopes"]


@pytest.mark.parametrize("days", [0, -1, 4000])
def test_a_lifetime_that_can_not_be_is_refused(session: Session, cast: Cast, days: int) -> None:
    limits = TokenLimits(lifetime=timedelta(days=days))
    with pytest.raises(InvalidInputError) as caught:
        create_api_token(session, scope_of(cast.bob), name="ci", limits=limits, now=NOON)
    assert list(caught.value.errors) == ["lifetime_days"]


def test_a_token_replaces_those_of_its_name_and_tenant_only(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.bob)
    old, _ = create_api_token(session, scope, name="laptop", now=NOON)
    other, _ = create_api_token(session, scope, name="desk", now=NOON)
    hers, _ = create_api_token(session, scope_of(cast.alice), name="laptop", now=NOON)
    new, _ = create_api_token(session, scope, name="laptop", now=NOON + DAY)
    assert revoke_older_tokens(session, scope, new, now=NOON + DAY) == 1
    assert old.revoked_at == NOON + DAY
    assert [token.revoked_at for token in (other, hers, new)] == [None, None, None]


def test_tokens_are_sorted_by_the_requested_field(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.bob)
    for name, at in (("b", NOON), ("a", NOON + DAY), ("c", NOON + 2 * DAY)):
        create_api_token(session, scope, name=name, now=at)
    assert [token.name for token in list_api_tokens(session, scope).items] == ["c", "a", "b"]
    assert [token.name for token in list_api_tokens(session, scope, sort="name").items] == list(
        "abc"
    )

"""Enrollment: tokens are spent once, whoever comes first, and agents keep their own secret."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
)
from protocol.inventory import Inventory
from tenants.enrollment import (
    create_enrollment_token,
    create_token_for_appliance,
    enroll_appliance,
    list_enrollment_tokens,
    revoke_enrollment_token,
)
from tenants.fleet.agents import authenticate_agent
from tenants.fleet.appliance_service import revoke_appliance
from tenants.models import Appliance, ApplianceState, Tenant, TenantState
from tests.cast import NOON, Cast, scope_of
from tests.unit.tenants.helpers import DAY, enroll, enrollment_secret


def test_an_enrolled_appliance_belongs_to_the_tokens_tenant(session: Session, cast: Cast) -> None:
    appliance, secret = enroll(session, enrollment_secret(session, cast.alice))
    assert secret.startswith("vda_")
    assert (appliance.tenant_id, appliance.state) == (cast.acme.id, ApplianceState.ENROLLED)
    assert authenticate_agent(session, secret).id == appliance.id


def test_a_token_is_spent_by_its_uses(session: Session, cast: Cast) -> None:
    secret = enrollment_secret(session, cast.alice, uses=2)
    enroll(session, secret, "gpu-01")
    enroll(session, secret, "gpu-02")
    with pytest.raises(UnauthenticatedError, match="wrong, expired, revoked or used up"):
        enroll(session, secret, "gpu-03")


def test_a_wrong_token_enrols_nobody(session: Session, cast: Cast) -> None:
    enrollment_secret(session, cast.alice)
    with pytest.raises(UnauthenticatedError):
        enroll(session, "vde_guessed")


def test_a_token_expires(session: Session, cast: Cast) -> None:
    secret = enrollment_secret(session, cast.alice)
    with pytest.raises(UnauthenticatedError):
        enroll_appliance(
            session,
            secret=secret,
            name="gpu-01",
            inventory=Inventory(hostname="gpu-01"),
            now=NOON + DAY,
        )


def test_one_of_two_that_race_for_the_last_use_gets_it(
    sessions: SessionFactory, cast: Cast
) -> None:
    with transaction(sessions) as session:
        secret = enrollment_secret(session, cast.alice)

    def race(name: str) -> bool:
        try:
            with transaction(sessions) as session:
                enroll(session, secret, name)
        except UnauthenticatedError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(race, ["gpu-01", "gpu-02"]))
    assert sorted(won) == [False, True]
    with transaction(sessions) as session:
        assert session.scalar(select(func.count()).select_from(Appliance)) == 1


def test_a_refused_enrollment_does_not_spend_the_token(
    sessions: SessionFactory, cast: Cast
) -> None:
    with transaction(sessions) as session:
        secret = enrollment_secret(session, cast.alice)
    with (
        pytest.raises(InvalidInputError, match="was not enrolled"),
        transaction(sessions) as session,
    ):
        enroll(session, secret, "no spaces, please")
    with transaction(sessions) as session:
        assert enroll(session, secret, "gpu-01")[0].name == "gpu-01"


def test_a_taken_name_gets_a_number_within_the_tenant_only(session: Session, cast: Cast) -> None:
    secret = enrollment_secret(session, cast.alice, uses=3)
    names = [enroll(session, secret)[0].name for _ in range(3)]
    assert names == ["gpu-01", "gpu-01-2", "gpu-01-3"]
    assert enroll(session, enrollment_secret(session, cast.charlie))[0].name == "gpu-01"


def test_the_tokens_place_and_labels_win_over_the_agents(session: Session, cast: Cast) -> None:
    _, secret = create_enrollment_token(
        session, scope_of(cast.alice), site="Lyon", labels={"tier": "gold"}, lifetime=DAY, now=NOON
    )
    appliance, _ = enroll_appliance(
        session,
        secret=secret,
        name="gpu-01",
        inventory=Inventory(hostname="gpu-01"),
        site="Mars",
        region="eu-west",
        labels={"tier": "tin", "rack": "7"},
        now=NOON,
    )
    assert (appliance.site, appliance.region) == ("Lyon", "eu-west")
    assert appliance.labels == {"tier": "gold", "rack": "7"}


def test_only_an_admin_of_a_tenant_makes_tokens(session: Session, cast: Cast) -> None:
    for user in (cast.bob, cast.olivia):
        with pytest.raises(ForbiddenError):
            enrollment_secret(session, user)


def test_all_errors_of_a_token_are_reported_together(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        create_enrollment_token(
            session, scope_of(cast.alice), site="x" * 101, uses=0, lifetime=timedelta(0), now=NOON
        )
    assert sorted(caught.value.errors) == ["lifetime", "site", "uses"]


def test_a_revoked_agent_is_refused_by_name(session: Session, cast: Cast) -> None:
    appliance, secret = enroll(session, enrollment_secret(session, cast.alice))
    revoke_appliance(session, scope_of(cast.alice), appliance.id, now=NOON)
    with pytest.raises(UnauthenticatedError, match="'gpu-01' was revoked"):
        authenticate_agent(session, secret)


def test_an_unknown_agent_must_enroll(session: Session) -> None:
    with pytest.raises(UnauthenticatedError, match="Enroll the appliance again"):
        authenticate_agent(session, "vda_unknown")


def test_a_suspended_tenant_cannot_authenticate_or_enroll_agents(
    session: Session, cast: Cast
) -> None:
    secret = enrollment_secret(session, cast.alice, uses=2)
    _, agent_secret = enroll(session, secret)
    session.get_one(Tenant, cast.acme.id).state = TenantState.SUSPENDED
    with pytest.raises(UnauthenticatedError, match="'Acme' is suspended"):
        authenticate_agent(session, agent_secret)
    with pytest.raises(UnauthenticatedError, match="'Acme' is suspended"):
        enroll(session, secret)


def test_a_revoked_token_enrols_nobody(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.alice)
    token, secret = create_enrollment_token(session, scope, uses=5, lifetime=DAY, now=NOON)
    enroll(session, secret, "gpu-01")
    revoke_enrollment_token(session, scope, token.id, now=NOON)
    with pytest.raises(UnauthenticatedError, match="revoked"):
        enroll(session, secret, "gpu-02")
    assert list_enrollment_tokens(session, scope, usable_at=NOON).total == 0


def test_tokens_are_listed_to_their_tenants_admins_alone(session: Session, cast: Cast) -> None:
    enrollment_secret(session, cast.alice)
    enrollment_secret(session, cast.alice)
    assert list_enrollment_tokens(session, scope_of(cast.alice)).total == 2
    assert list_enrollment_tokens(session, scope_of(cast.charlie)).total == 0
    with pytest.raises(ForbiddenError):
        list_enrollment_tokens(session, scope_of(cast.bob))


def test_an_appliance_that_enrolls_again_keeps_its_name_and_loses_its_old_identity(
    session: Session, cast: Cast
) -> None:
    appliance, old = enroll(session, enrollment_secret(session, cast.alice))
    scope = scope_of(cast.alice)
    _, secret = create_token_for_appliance(session, scope, appliance.id, lifetime=DAY, now=NOON)
    assert authenticate_agent(session, old).id == appliance.id
    same, new = enroll(session, secret, "whatever-its-host-says")
    assert (same.id, same.name) == (appliance.id, "gpu-01")
    assert authenticate_agent(session, new).id == appliance.id
    with pytest.raises(UnauthenticatedError):
        authenticate_agent(session, old)


def test_joining_again_lifts_the_fence(session: Session, cast: Cast) -> None:
    appliance, _ = enroll(session, enrollment_secret(session, cast.alice))
    appliance.fenced_at = NOON
    scope = scope_of(cast.alice)
    _, secret = create_token_for_appliance(session, scope, appliance.id, lifetime=DAY, now=NOON)
    _, new = enroll(session, secret)
    assert authenticate_agent(session, new).fenced_at is None


def test_a_revoked_appliance_cannot_enroll_again(session: Session, cast: Cast) -> None:
    appliance, _ = enroll(session, enrollment_secret(session, cast.alice))
    scope = scope_of(cast.alice)
    _, secret = create_token_for_appliance(session, scope, appliance.id, lifetime=DAY, now=NOON)
    revoke_appliance(session, scope, appliance.id, now=NOON)
    with pytest.raises(UnauthenticatedError, match="was revoked"):
        enroll(session, secret)
    with pytest.raises(ConflictError, match="was revoked"):
        create_token_for_appliance(session, scope, appliance.id, lifetime=DAY, now=NOON)


def test_another_tenants_appliance_gets_no_token(session: Session, cast: Cast) -> None:
    appliance, _ = enroll(session, enrollment_secret(session, cast.alice))
    with pytest.raises(NotFoundError):
        create_token_for_appliance(
            session, scope_of(cast.charlie), appliance.id, lifetime=DAY, now=NOON
        )

"""Invitations: made, renewed, revoked and accepted, and what they tell to whom."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.models import Invitation, Role, Tenant, TenantState, User
from tenants.users.invitations import (
    INVITATION_LIFETIME,
    accept_as,
    accept_as_new,
    find_invitation,
    invite,
    list_invitations,
    renew_invitation,
    revoke_invitation,
)
from tenants.users.members import list_users
from tests.cast import NOON, PASSWORD, Cast, scope_of
from tests.unit.tenants.helpers import authenticate

DORA = "dora@example.com"


def invited(
    session: Session,
    by: User,
    tenant: Tenant | None,
    *,
    email: str = DORA,
    role: Role = Role.MEMBER,
) -> tuple[Invitation, str]:
    tenant_id = None if tenant is None else tenant.id
    return invite(session, scope_of(by), tenant_id=tenant_id, email=email, role=role, now=NOON)


def test_a_new_user_accepts_and_signs_in(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme)
    user = accept_as_new(session, secret, name="Dora", password=PASSWORD, now=NOON)
    assert authenticate(session, email=DORA, password=PASSWORD).id == user.id
    assert [(membership.tenant_id, membership.role) for membership in user.memberships] == [
        (cast.acme.id, Role.MEMBER)
    ]


def test_a_known_user_joins_a_second_tenant(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme, email=cast.charlie.email)
    user = accept_as(session, secret, cast.charlie.id, now=NOON)
    assert {membership.tenant_id for membership in user.memberships} == {
        cast.globex.id,
        cast.acme.id,
    }


def test_an_operator_is_invited_by_an_operator(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.olivia, None, role=Role.OPERATOR)
    user = accept_as_new(session, secret, name="Dora", password=PASSWORD, now=NOON)
    assert user.is_operator
    assert user.memberships == []


def test_an_admin_invites_no_operator(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError, match="Only an operator"):
        invited(session, cast.alice, None, role=Role.OPERATOR)


def test_an_admin_invites_to_no_other_tenant(session: Session, cast: Cast) -> None:
    with pytest.raises(NotFoundError):
        invited(session, cast.alice, cast.globex)


def test_a_member_invites_nobody(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        invited(session, cast.bob, cast.acme)


def test_inviting_a_known_and_an_unknown_address_looks_the_same(
    session: Session, cast: Cast
) -> None:
    known_invitation, _ = invited(session, cast.alice, cast.acme, email=cast.charlie.email)
    unknown_invitation, _ = invited(session, cast.alice, cast.acme, email="nobody@globex.example")
    for name in ("tenant_id", "role", "created_at", "expires_at", "accepted_at", "revoked_at"):
        assert getattr(known_invitation, name) == getattr(unknown_invitation, name)


def test_a_member_is_not_invited(session: Session, cast: Cast) -> None:
    with pytest.raises(ConflictError, match="already a member"):
        invited(session, cast.alice, cast.acme, email="BOB@acme.example")


def test_nobody_is_invited_twice_to_the_same_tenant(session: Session, cast: Cast) -> None:
    invited(session, cast.alice, cast.acme)
    with pytest.raises(ConflictError, match="already invited"):
        invited(session, cast.alice, cast.acme)
    invited(session, cast.charlie, cast.globex)


def test_a_bad_address_is_named(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        invited(session, cast.alice, cast.acme, email="dora@")
    assert list(caught.value.errors) == ["email"]


def test_an_invitation_is_accepted_once(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme)
    accept_as_new(session, secret, name="Dora", password=PASSWORD, now=NOON)
    with pytest.raises(NotFoundError):
        accept_as_new(session, secret, name="Dora", password=PASSWORD, now=NOON)


def test_a_bad_password_leaves_the_invitation_open(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme)
    session.commit()
    with pytest.raises(InvalidInputError) as caught:
        accept_as_new(session, secret, name=" ", password="short", now=NOON)
    session.rollback()
    assert sorted(caught.value.errors) == ["name", "password"]
    assert find_invitation(session, secret, now=NOON).email == DORA


def test_an_invitation_expires_after_seven_days(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme)
    last = NOON + INVITATION_LIFETIME
    assert find_invitation(session, secret, now=last - timedelta(seconds=1))
    with pytest.raises(NotFoundError, match="no longer valid"):
        find_invitation(session, secret, now=last)


def test_sending_again_voids_the_first_link(session: Session, cast: Cast) -> None:
    invitation, first = invited(session, cast.alice, cast.acme)
    later = NOON + INVITATION_LIFETIME
    _, second = renew_invitation(session, scope_of(cast.alice), invitation.id, now=later)
    with pytest.raises(NotFoundError):
        find_invitation(session, first, now=NOON)
    assert find_invitation(session, second, now=later).id == invitation.id


def test_a_revoked_invitation_is_invalid(session: Session, cast: Cast) -> None:
    invitation, secret = invited(session, cast.alice, cast.acme)
    for _ in range(2):
        revoke_invitation(session, scope_of(cast.alice), invitation.id, now=NOON)
    with pytest.raises(NotFoundError):
        find_invitation(session, secret, now=NOON)
    with pytest.raises(ConflictError, match="no longer open"):
        renew_invitation(session, scope_of(cast.alice), invitation.id, now=NOON)
    assert list_invitations(session, scope_of(cast.alice)).items == []


def test_an_accepted_invitation_is_not_revoked(session: Session, cast: Cast) -> None:
    invitation, secret = invited(session, cast.alice, cast.acme)
    accept_as_new(session, secret, name="Dora", password=PASSWORD, now=NOON)
    with pytest.raises(ConflictError, match="no longer open"):
        revoke_invitation(session, scope_of(cast.alice), invitation.id, now=NOON)


def test_only_the_invited_user_accepts(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme)
    with pytest.raises(ForbiddenError, match=r"is for dora@example\.com"):
        accept_as(session, secret, cast.charlie.id, now=NOON)


def test_no_second_account_is_made_for_an_address(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme, email=cast.charlie.email)
    with pytest.raises(ConflictError):
        accept_as_new(session, secret, name="Mallory", password="another password", now=NOON)


def test_an_invitation_of_a_suspended_tenant_waits(session: Session, cast: Cast) -> None:
    _, secret = invited(session, cast.alice, cast.acme)
    tenant = session.get_one(Tenant, cast.acme.id)
    tenant.state = TenantState.SUSPENDED
    with pytest.raises(NotFoundError):
        find_invitation(session, secret, now=NOON)
    tenant.state = TenantState.ACTIVE
    assert find_invitation(session, secret, now=NOON).email == DORA


def test_charlie_sees_and_touches_no_invitation_of_acme(session: Session, cast: Cast) -> None:
    invitation, _ = invited(session, cast.alice, cast.acme)
    scope = scope_of(cast.charlie)
    assert list_invitations(session, scope).items == []
    with pytest.raises(NotFoundError):
        revoke_invitation(session, scope, invitation.id, now=NOON)
    with pytest.raises(NotFoundError):
        renew_invitation(session, scope, invitation.id, now=NOON)


def test_admins_see_no_invitation_of_operators(session: Session, cast: Cast) -> None:
    invited(session, cast.olivia, None, role=Role.OPERATOR)
    assert list_invitations(session, scope_of(cast.alice)).items == []
    assert list_invitations(session, scope_of(cast.olivia)).total == 1


def test_a_former_member_comes_back_by_invitation(session: Session, cast: Cast) -> None:
    session.delete(session.get_one(User, cast.bob.id).memberships[0])
    session.flush()
    session.expire_all()
    _, secret = invited(session, cast.alice, cast.acme, email=cast.bob.email, role=Role.VIEWER)
    accept_as(session, secret, cast.bob.id, now=NOON)
    emails = [member.email for member in list_users(session, scope_of(cast.alice)).items]
    assert cast.bob.email in emails

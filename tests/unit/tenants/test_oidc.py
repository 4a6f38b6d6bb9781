"""People of an identity provider: recognized, linked, and made members by their groups."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import UnauthenticatedError
from tenants.models import (
    APIToken,
    AuditEntry,
    LoginSession,
    Membership,
    OIDCIdentity,
    PasswordReset,
    Role,
    TenantState,
    User,
)
from tenants.users.oidc import GroupRoles, Identity, user_for_identity
from tenants.users.sessions import start_session
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, scope_of
from tests.unit.tenants.helpers import DAY

DANA = Identity(
    issuer="https://id.example",
    subject="dana-1",
    email="Dana@acme.example",
    is_email_verified=True,
    name="Dana",
    groups=frozenset({"gpu-users"}),
)
BOB = replace(DANA, subject="bob-1", email="bob@acme.example", name="Bob", groups=frozenset())
ROLES, _ = GroupRoles.parse(
    "gpu-users=acme:member,gpu-admins=acme:admin,others=globex:viewer,ops=operator,gone=nowhere:admin"
)


def arrive(session: Session, identity: Identity) -> User:
    user = user_for_identity(session, identity, ROLES, now=NOON)
    session.flush()
    return user


def roles(user: User) -> dict[str, Role]:
    return {membership.tenant.slug: membership.role for membership in user.memberships}


def test_a_new_user_is_added_with_what_their_groups_give(session: Session, cast: Cast) -> None:
    assert cast
    user = arrive(session, DANA)
    assert (user.email, user.name, user.password_hash) == ("dana@acme.example", "Dana", None)
    assert roles(user) == {"acme": Role.MEMBER}


def test_the_highest_role_of_several_groups_counts(session: Session, cast: Cast) -> None:
    assert cast
    user = arrive(session, replace(DANA, groups=frozenset({"gpu-users", "gpu-admins", "others"})))
    assert roles(user) == {"acme": Role.ADMIN, "globex": Role.VIEWER}


@pytest.mark.parametrize("groups", [set(), {"gone"}, {"unheard-of"}])
def test_a_new_user_without_grants_is_not_created(
    session: Session, cast: Cast, groups: set[str]
) -> None:
    assert cast
    with pytest.raises(UnauthenticatedError, match="none of your groups"):
        arrive(session, replace(DANA, groups=frozenset(groups)))
    assert session.scalar(select(User).where(User.email == "dana@acme.example")) is None


def test_an_unverified_address_links_and_adds_nobody(session: Session, cast: Cast) -> None:
    assert cast
    for identity in (DANA, BOB):
        with pytest.raises(UnauthenticatedError, match="not verified your email"):
            arrive(session, replace(identity, is_email_verified=False))
    assert session.scalars(select(OIDCIdentity)).all() == []


def test_a_known_identity_needs_no_address_any_more(session: Session, cast: Cast) -> None:
    assert cast
    first = arrive(session, DANA)
    moved = replace(DANA, email="dana@elsewhere.example", is_email_verified=False)
    assert arrive(session, moved).id == first.id
    assert first.email == "dana@acme.example"


def test_the_same_subject_of_another_issuer_is_another_user(session: Session, cast: Cast) -> None:
    assert cast
    first = arrive(session, DANA)
    other = replace(DANA, issuer="https://evil.example", email="eve@acme.example")
    assert arrive(session, other).id != first.id


def test_a_verified_address_links_the_account_that_has_it(session: Session, cast: Cast) -> None:
    assert arrive(session, BOB).id == cast.bob.id
    assert roles(session.get_one(User, cast.bob.id)) == {"acme": Role.MEMBER}


def test_a_locked_account_is_not_linked(session: Session, cast: Cast) -> None:
    session.get_one(User, cast.bob.id).is_active = False
    with pytest.raises(UnauthenticatedError, match="deactivated"):
        arrive(session, BOB)


def test_what_another_user_prepared_is_closed_when_the_owner_comes(
    session: Session, cast: Cast
) -> None:
    """Whoever added the account knows its password and may hold sessions and tokens of it."""
    start_session(session, cast.bob, now=NOON, lifetime=DAY)
    create_api_token(session, scope_of(cast.bob), name="x", now=NOON)
    user = arrive(session, BOB)
    assert user.password_hash is None
    assert session.scalars(select(LoginSession)).all() == []
    assert session.scalars(select(APIToken.revoked_at)).all() == [NOON]


def test_an_owner_who_proved_the_address_keeps_the_password(session: Session, cast: Cast) -> None:
    session.add(
        PasswordReset(
            user_id=cast.bob.id, secret_hash="x", created_at=NOON, expires_at=NOON, used_at=NOON
        )
    )
    assert arrive(session, BOB).password_hash is not None


def test_an_operator_keeps_the_password(session: Session, cast: Cast) -> None:
    olivia = replace(BOB, email=cast.olivia.email, subject="olivia-1")
    assert arrive(session, olivia).password_hash is not None


def test_groups_change_and_take_what_groups_gave(session: Session, cast: Cast) -> None:
    assert cast
    arrive(session, DANA)
    promoted = arrive(session, replace(DANA, groups=frozenset({"gpu-admins", "others"})))
    assert roles(promoted) == {"acme": Role.ADMIN, "globex": Role.VIEWER}
    assert roles(arrive(session, replace(DANA, groups=frozenset({"others"})))) == {
        "globex": Role.VIEWER
    }
    assert roles(arrive(session, replace(DANA, groups=frozenset()))) == {}


def test_groups_do_not_change_manual_memberships(session: Session, cast: Cast) -> None:
    assert cast
    for groups in ({"gpu-admins"}, set(), {"gpu-admins"}):
        user = arrive(session, replace(BOB, groups=frozenset(groups)))
        assert roles(user) == {"acme": Role.MEMBER}


def test_a_membership_granted_manually_again_stays(session: Session, cast: Cast) -> None:
    user = arrive(session, DANA)
    session.delete(user.memberships[0])
    session.flush()
    session.add(
        Membership(user_id=user.id, tenant_id=cast.acme.id, role=Role.VIEWER, created_at=NOON)
    )
    session.flush()
    session.expire_all()
    assert roles(arrive(session, replace(DANA, groups=frozenset()))) == {"acme": Role.VIEWER}


def test_a_user_deactivated_in_a_tenant_stays_so(session: Session, cast: Cast) -> None:
    assert cast
    arrive(session, DANA).memberships[0].is_active = False
    assert not arrive(session, DANA).memberships[0].is_active


def test_groups_make_and_unmake_operators_but_not_those_by_hand(
    session: Session, cast: Cast
) -> None:
    ops = frozenset({"ops"})
    assert arrive(session, replace(DANA, groups=ops)).is_operator
    assert not arrive(session, replace(DANA, groups=frozenset({"gpu-users"}))).is_operator
    olivia = replace(BOB, email=cast.olivia.email, subject="olivia-1")
    for groups in (ops, frozenset[str]()):
        assert arrive(session, replace(olivia, groups=groups)).is_operator


def by_groups_alone(session: Session, cast: Cast) -> User:
    """Return Dana, who is acme's only admin, by a group."""
    user = arrive(session, replace(DANA, groups=frozenset({"gpu-admins"})))
    alice = session.get_one(User, cast.alice.id)
    alice.memberships[0].is_active = False
    session.flush()
    return user


@pytest.mark.parametrize("groups", [set(), {"gpu-users"}])
def test_groups_do_not_take_a_tenants_last_admin_and_it_is_logged(
    session: Session, cast: Cast, caplog: pytest.LogCaptureFixture, *, groups: set[str]
) -> None:
    by_groups_alone(session, cast)
    user = arrive(session, replace(DANA, groups=frozenset(groups)))
    assert roles(user) == {"acme": Role.ADMIN}
    assert "dana@acme.example stays an admin of acme" in caplog.text
    session.commit()
    entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "membership.kept")).one()
    assert entry.chain == cast.acme.id
    assert "last admin" in entry.reason


def test_groups_take_a_retained_admin_once_there_is_another(session: Session, cast: Cast) -> None:
    by_groups_alone(session, cast)
    nothing = replace(DANA, groups=frozenset())
    arrive(session, nothing)
    session.get_one(User, cast.alice.id).memberships[0].is_active = True
    session.flush()
    assert roles(arrive(session, nothing)) == {}


def test_groups_do_not_take_the_last_operator(session: Session, cast: Cast) -> None:
    arrive(session, replace(DANA, groups=frozenset({"ops"})))
    session.get_one(User, cast.olivia.id).is_operator = False
    session.flush()
    assert arrive(session, replace(DANA, groups=frozenset({"gpu-users"}))).is_operator
    session.get_one(User, cast.olivia.id).is_operator = True
    session.flush()
    assert not arrive(session, replace(DANA, groups=frozenset({"gpu-users"}))).is_operator


def test_groups_give_nothing_of_a_closed_tenant(session: Session, cast: Cast) -> None:
    session.merge(cast.acme).state = TenantState.CLOSED
    with pytest.raises(UnauthenticatedError, match="none of your groups"):
        arrive(session, DANA)


def test_the_last_sign_in_is_stored(session: Session, cast: Cast) -> None:
    assert cast
    arrive(session, DANA)
    later = NOON + timedelta(days=3)
    user_for_identity(session, DANA, ROLES, now=later)
    assert session.scalars(select(OIDCIdentity.last_used_at)).all() == [later]


@pytest.mark.parametrize(
    ("text", "group", "role"),
    [
        ("a=acme:admin", "a", Role.ADMIN),
        (" a = acme:viewer , b=operator", "a", Role.VIEWER),
        ("cn=gpu,ou=groups=acme:member;b=operator", "cn=gpu,ou=groups", Role.MEMBER),
        ("a=acme:member;", "a", Role.MEMBER),
        ("a=acme:billing,a=acme:viewer", "a", Role.BILLING),
    ],
)
def test_the_mapping_is_read(text: str, group: str, role: Role) -> None:
    group_roles, faults = GroupRoles.parse(text)
    assert faults == []
    assert group_roles.grants(frozenset({group})).roles == {"acme": role}


@pytest.mark.parametrize(
    "text", ["a", "a=", "=operator", "a=acme", "a=acme:operator", "a=acme:boss", "a=:admin"]
)
def test_a_mapping_that_can_not_be_is_named(text: str) -> None:
    _, faults = GroupRoles.parse(f"ok=operator,{text}")
    assert len(faults) == 1
    assert repr(text) in faults[0]

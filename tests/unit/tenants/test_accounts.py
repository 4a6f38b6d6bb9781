"""Tenants and users: who may add, see and lock whom."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from tenants.lifecycle.removal import set_tenant_state
from tenants.lifecycle.usage import TenantCounts, tenant_counts
from tenants.models import Role, TenantState, User
from tenants.tenants import create_tenant, find_tenant, get_tenant, list_tenants
from tenants.users.member_changes import add_user, set_user_active
from tenants.users.members import Member, create_user, get_user, list_users
from tenants.users.passwords import change_password
from tenants.users.sessions import session_principal, start_session
from tests.cast import NOON, PASSWORD, Cast, make_appliance, scope_of
from tests.unit.tenants.helpers import DAY, authenticate


@pytest.mark.parametrize(
    ("name", "slug"), [("Acme Labs", "acme-labs"), ("Zürich KI", "zurich-ki"), ("a.b--c", "a-b-c")]
)
def test_a_tenant_gets_a_slug_from_its_name(session: Session, name: str, slug: str) -> None:
    assert create_tenant(session, name=name, now=NOON).slug == slug
    assert find_tenant(session, slug) is not None


def test_a_name_without_letters_needs_a_slug(session: Session) -> None:
    with pytest.raises(InvalidInputError) as caught:
        create_tenant(session, name="???", now=NOON)
    assert list(caught.value.errors) == ["slug"]


def test_a_taken_slug_is_a_conflict_and_the_session_stays_usable(session: Session) -> None:
    create_tenant(session, name="Initech", now=NOON)
    with pytest.raises(ConflictError, match="'initech' belongs to another tenant"):
        create_tenant(session, name="INITECH", now=NOON)
    assert create_tenant(session, name="Initech", slug="initech-2", now=NOON).slug == "initech-2"


def test_the_operator_sees_all_tenants_and_an_admin_only_the_own_one(
    session: Session, cast: Cast
) -> None:
    assert [t.slug for t in list_tenants(session, scope_of(cast.olivia)).items] == [
        "acme",
        "globex",
    ]
    assert [t.slug for t in list_tenants(session, scope_of(cast.alice)).items] == ["acme"]


def test_charlie_gets_the_same_404_for_acme_and_for_nothing(session: Session, cast: Cast) -> None:
    messages = []
    for ident in (cast.acme.id, "no-such-tenant"):
        with pytest.raises(NotFoundError) as caught:
            get_tenant(session, scope_of(cast.charlie), ident)
        messages.append(caught.value.message.replace(ident, "ID"))
    assert messages[0] == messages[1]


def test_only_the_operator_suspends_a_tenant(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        set_tenant_state(
            session, scope_of(cast.alice), cast.acme.id, TenantState.SUSPENDED, now=NOON
        )
    tenant = set_tenant_state(
        session, scope_of(cast.olivia), cast.acme.id, TenantState.SUSPENDED, now=NOON
    )
    assert tenant.state is TenantState.SUSPENDED


def test_suspending_a_tenant_signs_its_users_out(session: Session, cast: Cast) -> None:
    secret = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    scope = scope_of(cast.olivia)
    set_tenant_state(session, scope, cast.acme.id, TenantState.SUSPENDED, now=NOON)
    set_tenant_state(session, scope, cast.acme.id, TenantState.ACTIVE, now=NOON)
    assert session_principal(session, secret, now=NOON) is None


def test_all_errors_of_a_new_user_are_reported_together(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        create_user(
            session,
            tenant_id=cast.acme.id,
            email="dora@",
            name=" ",
            role=Role.OPERATOR,
            password="short",
            now=NOON,
        )
    assert sorted(caught.value.errors) == ["email", "name", "password", "role"]


def test_a_member_without_a_tenant_is_refused(session: Session) -> None:
    with pytest.raises(InvalidInputError, match="needs a tenant"):
        create_user(
            session,
            tenant_id=None,
            email="dora@acme.example",
            name="Dora",
            role=Role.MEMBER,
            password=PASSWORD,
            now=NOON,
        )


def test_an_email_address_is_taken_whatever_its_case(session: Session, cast: Cast) -> None:
    with pytest.raises(ConflictError, match=r"alice@acme\.example"):
        create_user(
            session,
            tenant_id=cast.globex.id,
            email="ALICE@Acme.example",
            name="Alice",
            role=Role.MEMBER,
            password=PASSWORD,
            now=NOON,
        )


def _add(session: Session, by: User, tenant_id: str | None, role: Role = Role.MEMBER) -> Member:
    return add_user(
        session,
        scope_of(by),
        tenant_id=tenant_id,
        email="dora@acme.example",
        name="Dora",
        role=role,
        password=PASSWORD,
        now=NOON,
    )


def test_the_operator_adds_users_to_any_tenant(session: Session, cast: Cast) -> None:
    assert _add(session, cast.olivia, cast.acme.id).tenant_id == cast.acme.id


def test_the_operator_adds_operators(session: Session, cast: Cast) -> None:
    assert _add(session, cast.olivia, None, Role.OPERATOR).tenant_id is None


def test_an_admin_invites_and_sets_no_passwords(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError, match="Invite the person"):
        _add(session, cast.alice, cast.acme.id)


def test_a_member_cannot_add_users(session: Session, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        _add(session, cast.bob, cast.acme.id)


def test_an_admin_lists_only_the_own_tenants_users(session: Session, cast: Cast) -> None:
    emails = [u.email for u in list_users(session, scope_of(cast.charlie)).items]
    assert emails == ["charlie@globex.example"]


def test_the_operator_narrows_the_users_to_one_tenant(session: Session, cast: Cast) -> None:
    page = list_users(session, scope_of(cast.olivia), tenant_id=cast.acme.id, page_size=1)
    assert ([u.email for u in page.items], page.total) == (["alice@acme.example"], 2)


def test_bob_sees_himself_but_not_alice(session: Session, cast: Cast) -> None:
    assert get_user(session, scope_of(cast.bob), cast.bob.id).id == cast.bob.id
    with pytest.raises(ForbiddenError):
        get_user(session, scope_of(cast.bob), cast.alice.id)


def test_charlie_cannot_lock_bob_out(session: Session, cast: Cast) -> None:
    with pytest.raises(NotFoundError):
        set_user_active(session, scope_of(cast.charlie), cast.bob.id, is_active=False)


def test_locking_a_user_out_ends_their_sessions(session: Session, cast: Cast) -> None:
    secret = start_session(session, cast.bob, now=NOON, lifetime=DAY)
    set_user_active(session, scope_of(cast.alice), cast.bob.id, is_active=False)
    set_user_active(session, scope_of(cast.alice), cast.bob.id, is_active=True)
    assert session_principal(session, secret, now=NOON) is None


def test_nobody_deactivates_themselves(session: Session, cast: Cast) -> None:
    with pytest.raises(ConflictError, match="deactivate yourself"):
        set_user_active(session, scope_of(cast.alice), cast.alice.id, is_active=False)


def test_a_changed_password_is_the_one_that_counts(session: Session, cast: Cast) -> None:
    change_password(session, cast.bob, current=PASSWORD, new="another horse battery")
    user = authenticate(session, email=cast.bob.email, password="another horse battery")
    assert user.id == cast.bob.id


def test_changing_the_password_ends_all_other_sessions(session: Session, cast: Cast) -> None:
    here, there = (start_session(session, cast.bob, now=NOON, lifetime=DAY) for _ in range(2))
    change_password(
        session, cast.bob, current=PASSWORD, new="another horse battery", keep_session=here
    )
    assert session_principal(session, here, now=NOON) is not None
    assert session_principal(session, there, now=NOON) is None


@pytest.mark.parametrize(
    ("current", "new", "field"),
    [
        ("wrong", "another horse battery", "current"),
        (PASSWORD, "short", "new"),
        (PASSWORD, PASSWORD, "new"),
    ],
)
def test_a_bad_change_of_password_names_the_field(
    session: Session, cast: Cast, current: str, new: str, field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        change_password(session, cast.bob, current=current, new=new)
    assert list(caught.value.errors) == [field]


def test_tenants_are_counted_by_users_appliances_and_jobs(session: Session, cast: Cast) -> None:
    make_appliance(session, session.merge(cast.acme), "gpu-01")
    assert tenant_counts(session) == {
        cast.acme.id: TenantCounts(users=2, appliances=1, jobs=0),
        cast.globex.id: TenantCounts(users=1, appliances=0, jobs=0),
    }

"""Scopes and permissions: who may do what, in which tenant."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, NotFoundError
from tenants.models import Appliance, Role, TenantState
from tenants.permissions import (
    PERMISSIONS,
    TOKEN_SCOPES,
    Permission,
    is_allowed,
    permissions_of,
)
from tenants.scope import Scope, active_memberships
from tests.cast import Cast, make_appliance

P = Permission
MEMBER_ROLES = [role for role in Role if role is not Role.OPERATOR]

EXPECTED = {
    P.VIEW: {Role.VIEWER, Role.BILLING, Role.MEMBER, Role.ADMIN, Role.OPERATOR},
    P.SUBMIT_JOBS: {Role.MEMBER, Role.ADMIN},
    P.PUSH_IMAGES: {Role.MEMBER, Role.ADMIN, Role.OPERATOR},
    P.STOP_ANY_JOB: {Role.ADMIN},
    P.OPEN_SHELLS: {Role.MEMBER, Role.ADMIN},
    P.EDIT_ALERTS: {Role.MEMBER, Role.ADMIN},
    P.SAVE_REPORTS: {Role.MEMBER, Role.ADMIN},
    P.EDIT_DASHBOARDS: {Role.MEMBER, Role.ADMIN, Role.OPERATOR},
    P.EDIT_ANY_DASHBOARD: {Role.ADMIN},
    P.EDIT_DATASETS: {Role.MEMBER, Role.ADMIN},
    P.MANAGE_DATA: {Role.ADMIN},
    P.MANAGE_APPLIANCES: {Role.ADMIN},
    P.MANAGE_PROJECTS: {Role.ADMIN},
    P.MANAGE_USERS: {Role.ADMIN, Role.OPERATOR},
    P.VIEW_AUDIT: {Role.ADMIN, Role.OPERATOR},
    P.USE_SUPPORT: {Role.MEMBER, Role.ADMIN, Role.BILLING, Role.OPERATOR},
    P.RENT: {Role.ADMIN},
    P.MANAGE_OFFERS: {Role.ADMIN},
    P.VERIFY: {Role.ADMIN, Role.OPERATOR},
    P.VIEW_BILLING: {Role.BILLING, Role.ADMIN, Role.OPERATOR},
    P.MANAGE_BILLING: {Role.BILLING, Role.ADMIN, Role.OPERATOR},
    P.MANAGE_TENANTS: {Role.OPERATOR},
    P.OPERATE: {Role.OPERATOR},
}


@pytest.mark.parametrize("role", MEMBER_ROLES)
def test_only_the_operator_has_a_scope_without_a_tenant(role: Role) -> None:
    with pytest.raises(ValueError, match="only the operator"):
        Scope("user", role, None)


def test_the_operators_scope_has_no_tenant() -> None:
    with pytest.raises(ValueError, match="operator's scope"):
        Scope("user", Role.OPERATOR, "tenant")
    assert Scope("user", Role.OPERATOR, None).tenants is None
    assert Scope("user", Role.VIEWER, "tenant").tenants == ("tenant",)


@pytest.mark.parametrize("permission", list(Permission))
def test_each_permission_belongs_to_these_roles(permission: Permission) -> None:
    assert {role for role in Role if is_allowed(role, permission)} == EXPECTED[permission]


@pytest.mark.parametrize("role", MEMBER_ROLES)
@pytest.mark.parametrize("permission", list(Permission))
def test_a_refusal_names_the_role_and_the_permission(role: Role, permission: Permission) -> None:
    scope = Scope("user", role, "tenant")
    if role in EXPECTED[permission]:
        assert scope.allows(permission)
        scope.require(permission)
        return
    assert not scope.allows(permission)
    with pytest.raises(ForbiddenError) as refused:
        scope.require(permission)
    assert repr(role.value) in refused.value.message
    assert f"may not {permission.value}" in refused.value.message
    assert refused.value.code == "forbidden"


def test_a_limited_token_is_refused_with_its_scopes_and_the_permission() -> None:
    scope = Scope("user", Role.ADMIN, "tenant").limited(["jobs", "alerts"])
    assert (scope.user_id, scope.role, scope.tenant_id) == ("user", Role.ADMIN, "tenant")
    scope.require(P.SUBMIT_JOBS)
    with pytest.raises(ForbiddenError) as refused:
        scope.require(P.MANAGE_USERS)
    assert refused.value.code == "token_scope"
    assert "limited to jobs, alerts" in refused.value.message
    assert f"may not {P.MANAGE_USERS.value}" in refused.value.message


def test_a_limited_token_has_no_more_permissions_than_its_role() -> None:
    scope = Scope("user", Role.VIEWER, "tenant").limited(["jobs"])
    with pytest.raises(ForbiddenError) as refused:
        scope.require(P.SUBMIT_JOBS)
    assert refused.value.code == "forbidden"


def test_only_an_unlimited_scope_may_change_how_its_user_signs_in() -> None:
    scope = Scope("user", Role.VIEWER, "tenant")
    scope.require_unlimited()
    with pytest.raises(ForbiddenError) as refused:
        scope.limited(["read"]).require_unlimited()
    assert refused.value.code == "token_scope"
    assert "limited to read" in refused.value.message


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", list(TOKEN_SCOPES))
def test_a_token_scope_is_intersected_with_the_role(role: Role, name: str) -> None:
    assert permissions_of(role, [name]) == PERMISSIONS[role] & TOKEN_SCOPES[name]


def test_several_token_scopes_add_up_and_an_unknown_one_adds_nothing() -> None:
    both = TOKEN_SCOPES["audit"] | TOKEN_SCOPES["users"]
    assert permissions_of(Role.ADMIN, ["audit", "users", "retired-scope"]) == both
    assert permissions_of(Role.ADMIN, ["retired-scope"]) == frozenset()
    assert permissions_of(Role.ADMIN) == PERMISSIONS[Role.ADMIN]


def test_an_operator_owns_no_objects() -> None:
    assert Scope("user", Role.MEMBER, "tenant").require_tenant() == "tenant"
    with pytest.raises(ForbiddenError, match="no tenant"):
        Scope("user", Role.OPERATOR, None).require_tenant()


def test_a_scope_selects_and_gets_rows_of_its_own_tenant(session: Session, cast: Cast) -> None:
    own = make_appliance(session, cast.acme, "gpu-01")
    foreign = make_appliance(session, cast.globex, "gpu-02")
    acme = Scope(cast.bob.id, Role.MEMBER, cast.acme.id)
    everything = Scope(cast.olivia.id, Role.OPERATOR, None)
    statement = select(Appliance).order_by(Appliance.name)
    assert list(session.scalars(acme.select(statement, Appliance))) == [own]
    assert list(session.scalars(everything.select(statement, Appliance))) == [own, foreign]
    assert acme.get(session, Appliance, own.id, kind="appliance") is own
    assert everything.get(session, Appliance, foreign.id, kind="appliance") is foreign
    messages = set()
    for ident in (foreign.id, "missing"):
        with pytest.raises(NotFoundError) as missing:
            acme.get(session, Appliance, ident, kind="appliance")
        messages.add(missing.value.message.replace(ident, "ID"))
    assert len(messages) == 1


def test_a_users_scope_is_that_of_the_chosen_or_first_active_membership(cast: Cast) -> None:
    assert Scope.of(cast.olivia) == Scope(cast.olivia.id, Role.OPERATOR, None)
    assert Scope.of(cast.bob) == Scope(cast.bob.id, Role.MEMBER, cast.acme.id)
    assert Scope.of(cast.bob, cast.acme.id) == Scope.of(cast.bob)
    with pytest.raises(NotFoundError):
        Scope.of(cast.bob, cast.globex.id)
    cast.bob.memberships[0].is_active = False
    assert active_memberships(cast.bob) == []
    cast.bob.memberships[0].is_active = True
    cast.bob.memberships[0].tenant.state = TenantState.SUSPENDED
    assert active_memberships(cast.bob) == []
    with pytest.raises(NotFoundError):
        Scope.of(cast.bob)

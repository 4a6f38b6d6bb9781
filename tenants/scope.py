"""The tenant scope: every query of the portal goes through one, so nothing crosses tenants.

A scope says who asks and which tenant's rows they may see. The operator's scope sees every tenant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, NotFoundError
from tenants.models import Membership, Role, TenantState, User
from tenants.permissions import Permission, is_allowed, permissions_of

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Scope:
    """Who asks, as what, and in which tenant; `tenant_id` None is the operator's view of all.

    `token_scopes` limit what an API token may do; empty is without a limit.
    """

    user_id: str
    role: Role
    tenant_id: str | None
    token_scopes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a scope that would let a tenant's user see everything."""
        if self.tenant_id is None and self.role is not Role.OPERATOR:
            raise ValueError("only the operator has a scope without a tenant")
        if self.tenant_id is not None and self.role is Role.OPERATOR:
            raise ValueError("the operator's scope has no tenant")

    @classmethod
    def of(cls, user: User, tenant_id: str | None = None) -> "Scope":
        """Return the scope of a user in a tenant.

        Without a tenant it is the operator's where the user is one, else that of the first
        membership in force.

        Raises:
            NotFoundError: the user does not belong to the tenant.
        """
        if tenant_id is None and user.is_operator:
            return cls(user_id=user.id, role=Role.OPERATOR, tenant_id=None)
        for membership in memberships_in_force(user):
            if tenant_id in {None, membership.tenant_id}:
                return cls.of_membership(membership)
        raise NotFoundError.of("tenant", tenant_id or "")

    @classmethod
    def of_membership(cls, membership: Membership) -> "Scope":
        """Return the scope of a user in the tenant of a membership."""
        return cls(user_id=membership.user_id, role=membership.role, tenant_id=membership.tenant_id)

    @property
    def tenants(self) -> tuple[str, ...] | None:
        """The tenants to name in a store query; None is every tenant."""
        return None if self.tenant_id is None else (self.tenant_id,)

    def limited(self, token_scopes: Sequence[str]) -> "Scope":
        """Return the scope of an API token of this user."""
        return Scope(self.user_id, self.role, self.tenant_id, tuple(token_scopes))

    def allows(self, permission: Permission) -> bool:
        """Whether the permission is given."""
        return permission in permissions_of(self.role, self.token_scopes)

    def require(self, permission: Permission) -> None:
        """Raise `ForbiddenError` unless the permission is given."""
        if self.allows(permission):
            return
        if is_allowed(self.role, permission):
            raise ForbiddenError(
                f"This API token is limited to {', '.join(self.token_scopes)} and may not "
                f"{permission.value}. Make a token with more scopes.",
                code="token_scope",
            )
        raise ForbiddenError(
            f"Your role {self.role.value!r} may not {permission.value}. "
            "Ask an admin of your tenant."
        )

    def require_unlimited(self) -> None:
        """Raise `ForbiddenError` for an API token of few scopes: it must not widen itself."""
        if self.token_scopes:
            raise ForbiddenError(
                f"This API token is limited to {', '.join(self.token_scopes)} and may not change "
                "how its user signs in. Use a token without scopes, or the browser.",
                code="token_scope",
            )

    def require_tenant(self) -> str:
        """Return the tenant that a new object will belong to; the operator has none."""
        if self.tenant_id is None:
            raise ForbiddenError(
                "The operator belongs to no tenant and can't own this. Sign in as a tenant's user."
            )
        return self.tenant_id

    def select(self, statement: Select[Any], model: Any) -> Select[Any]:  # noqa: ANN401 - any model
        """Return the statement narrowed to the rows of `model` that this scope may see."""
        return statement if self.tenant_id is None else statement.where(
            model.tenant_id == self.tenant_id
        )  # fmt: skip

    def get(self, session: Session, model: type[M], ident: str, *, kind: str) -> M:
        """Return one object by id.

        Raises:
            NotFoundError: it is missing or another tenant's; both look the same.
        """
        found = session.get(model, ident)
        if found is None or not self.owns(found):
            raise NotFoundError.of(kind, ident)
        return found

    def owns(self, row: Any) -> bool:  # noqa: ANN401 - any model with a tenant
        """Whether this scope may see a row."""
        return self.tenant_id is None or row.tenant_id == self.tenant_id


def memberships_in_force(user: User) -> list[Membership]:
    """Return the memberships that let a user in: active, of active tenants, the oldest first."""
    return [
        one for one in user.memberships if one.is_active and one.tenant.state is TenantState.ACTIVE
    ]

"""The tenant scope: every query of the portal goes through one, so that tenants stay isolated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session
from sqlalchemy.orm.interfaces import ORMOption

from core.errors import ForbiddenError, NotFoundError
from tenants.models import Membership, Role, TenantState, User
from tenants.permissions import Permission, is_allowed, permissions_of

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Scope:
    """The current user, their role and their tenant; `tenant_id` None is the operator, all tenants.

    `token_scopes` limit an API token; empty is unlimited.
    """

    user_id: str
    role: Role
    tenant_id: str | None
    token_scopes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that only the operator's scope spans all tenants."""
        if self.tenant_id is None and self.role is not Role.OPERATOR:
            raise ValueError("only the operator has a scope without a tenant")
        if self.tenant_id is not None and self.role is Role.OPERATOR:
            raise ValueError("the operator's scope has no tenant")

    @classmethod
    def of(cls, user: User, tenant_id: str | None = None) -> "Scope":
        """Return the scope of a user in a tenant.

        Without a tenant: the operator's scope for operators, else that of the first active
        membership.

        Raises:
            NotFoundError: the user does not belong to the tenant.
        """
        if tenant_id is None and user.is_operator:
            return cls(user_id=user.id, role=Role.OPERATOR, tenant_id=None)
        for membership in active_memberships(user):
            if tenant_id in {None, membership.tenant_id}:
                return cls.of_membership(membership)
        raise NotFoundError.of("tenant", tenant_id or "")

    @classmethod
    def of_membership(cls, membership: Membership) -> "Scope":
        """Return the scope of a membership."""
        return cls(user_id=membership.user_id, role=membership.role, tenant_id=membership.tenant_id)

    @property
    def tenants(self) -> tuple[str, ...] | None:
        """The tenants for a store query; None is all tenants."""
        return None if self.tenant_id is None else (self.tenant_id,)

    def limited(self, token_scopes: Sequence[str]) -> "Scope":
        """Return the scope of an API token of this user."""
        return Scope(self.user_id, self.role, self.tenant_id, tuple(token_scopes))

    def allows(self, permission: Permission) -> bool:
        """Return whether the scope has the permission."""
        return permission in permissions_of(self.role, self.token_scopes)

    def require(self, permission: Permission) -> None:
        """Raise `ForbiddenError` unless the scope has the permission."""
        if self.allows(permission):
            return
        if is_allowed(self.role, permission):
            raise ForbiddenError(
                f"This API token is limited to {', '.join(self.token_scopes)} and may not "
                f"{permission.value}. Create a token with more scopes.",
                code="token_scope",
            )
        raise ForbiddenError(
            f"Your role {self.role.value!r} may not {permission.value}. "
            "Ask an admin of your tenant."
        )

    def require_unlimited(self) -> None:
        """Raise `ForbiddenError` for a limited API token, which must not extend its own rights."""
        if self.token_scopes:
            raise ForbiddenError(
                f"This API token is limited to {', '.join(self.token_scopes)} and may not change "
                "how its user signs in. Use a token without scopes, or a browser.",
                code="token_scope",
            )

    def require_tenant(self) -> str:
        """Return the tenant that will own a new object; raise `ForbiddenError` for the operator."""
        if self.tenant_id is None:
            raise ForbiddenError(
                "Operators belong to no tenant and can't own this. Sign in as a tenant's user."
            )
        return self.tenant_id

    def select(self, statement: Select[Any], model: Any) -> Select[Any]:  # noqa: ANN401 - any model
        """Return the statement, filtered to the rows of `model` in this scope."""
        if self.tenant_id is None:
            return statement
        return statement.where(model.tenant_id == self.tenant_id)

    def get(
        self,
        session: Session,
        model: type[M],
        ident: str,
        *,
        kind: str,
        options: Sequence[ORMOption] = (),
    ) -> M:
        """Return one object by id; `options` say what to load with it.

        Raises:
            NotFoundError: it does not exist or belongs to another tenant; both look the same.
        """
        row = session.get(model, ident, options=options)
        if row is None or not self.owns(row):
            raise NotFoundError.of(kind, ident)
        return row

    def owns(self, row: Any) -> bool:  # noqa: ANN401 - any model with a tenant
        """Return whether a row is in this scope."""
        return self.tenant_id is None or row.tenant_id == self.tenant_id


def active_memberships(user: User) -> list[Membership]:
    """Return a user's active memberships of active tenants, oldest first."""
    return [
        membership
        for membership in user.memberships
        if membership.is_active and membership.tenant.state is TenantState.ACTIVE
    ]

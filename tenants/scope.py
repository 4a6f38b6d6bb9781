"""The tenant scope: every query of the portal goes through one, so nothing crosses tenants.

A scope says who asks and which tenant's rows they may see. The operator's scope sees every tenant.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, NotFoundError
from tenants.models import Role, User
from tenants.permissions import Permission, is_allowed

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Scope:
    """Who asks, as what, and in which tenant; `tenant_id` None is the operator's view of all."""

    user_id: str
    role: Role
    tenant_id: str | None

    def __post_init__(self) -> None:
        """Refuse a scope that would let a tenant's user see everything."""
        if self.tenant_id is None and self.role is not Role.OPERATOR:
            raise ValueError("only the operator has a scope without a tenant")

    @classmethod
    def of(cls, user: User) -> "Scope":
        """Return the scope of a signed-in user."""
        return cls(user_id=user.id, role=user.role, tenant_id=user.tenant_id)

    @property
    def tenants(self) -> tuple[str, ...] | None:
        """The tenants to name in a store query; None is every tenant."""
        return None if self.tenant_id is None else (self.tenant_id,)

    def require(self, permission: Permission) -> None:
        """Raise `ForbiddenError` unless the role has the permission."""
        if not is_allowed(self.role, permission):
            raise ForbiddenError(
                f"Your role {self.role.value!r} may not {permission.value}. "
                "Ask an admin of your tenant."
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

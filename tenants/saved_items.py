"""Items that users save under names: dashboards, views, reports and job templates.

Authors change what they saved; users with a further permission change that of others. What
operators save belongs to no tenant.
"""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from tenants.permissions import Permission
from tenants.scope import Scope


class SavedItem(Protocol):
    """A row with a name, an author and a tenant."""

    id: Any
    tenant_id: Any
    user_id: Any
    name: Any


T = TypeVar("T", bound=SavedItem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedItems(Generic[T]):
    """The rows of one table, in the scope of a user.

    Attributes:
        noun: what a row is, such as `saved view`.
        own: the permission to change rows; None for every user.
        others: the further permission to change those of others.
        max_items: how many a tenant has at most, or a user where rows are personal.
        max_shared: of personal ones, how many a tenant shares at most. Personal rows are their
            author's alone unless they are shared, and each author names theirs.
    """

    model: type[T]
    noun: str
    own: Permission | None
    others: Permission
    max_items: int
    max_shared: int = 0

    def select(self, scope: Scope) -> Select[Any]:
        """Select the rows that the user sees; operators see what tenants share."""
        model: Any = self.model
        statement = scope.select(select(model), model)
        if not self.max_shared:
            return statement
        return statement.where(or_(model.is_shared, model.user_id == scope.user_id))

    def get(self, session: Session, scope: Scope, ident: str, *, by_name: bool = False) -> T:
        """Return a row by its ID, or also by its name.

        Raises:
            NotFoundError: there is none, or the user doesn't see it.
        """
        item = self.find(session, scope, ident, by_name=by_name)
        if item is None:
            raise NotFoundError.of(self.noun, ident)
        return item

    def find(
        self, session: Session, scope: Scope, ident: str, *, by_name: bool = False
    ) -> T | None:
        """Return a row by its ID, or also by its name; None if the user sees none."""
        scope.require(Permission.VIEW)
        model: Any = self.model
        wanted = or_(model.id == ident, model.name == ident) if by_name else model.id == ident
        statement = self.select(scope).where(wanted).order_by(model.id != ident)
        item: T | None = session.scalars(statement).unique().first()
        return item

    def may_change(self, scope: Scope, row: T) -> bool:
        """Return whether the user may change or delete a row that they see."""
        return all(map(scope.allows, self._permissions(scope, row)))

    def changeable(self, session: Session, scope: Scope, ident: str, *, by_name: bool = False) -> T:
        """Return a row that the user may change; raise `ForbiddenError` for another one."""
        row = self.get(session, scope, ident, by_name=by_name)
        for permission in self._permissions(scope, row):
            scope.require(permission)
        return row

    def check_name(
        self,
        session: Session,
        name: str,
        *,
        tenant_id: str | None,
        user_id: str | None,
        but: str | None,
    ) -> None:
        """Raise `ConflictError` if a row other than `but` has the name."""
        model: Any = self.model
        taken = select(model.id).where(
            model.tenant_id == tenant_id, model.name == name, model.id != (but or "")
        )
        if self.max_shared:
            taken = taken.where(model.user_id == user_id)
        if session.scalar(taken):
            message = f"There is a {self.noun} {name!r} already. Use another name."
            raise ConflictError(message, errors={"name": [message]})

    def check_room(self, session: Session, scope: Scope) -> None:
        """Raise `ConflictError` if the tenant, or the user, has the most rows."""
        model: Any = self.model
        count = select(func.count()).select_from(model).where(model.tenant_id == scope.tenant_id)
        if self.max_shared:
            count = count.where(model.user_id == scope.user_id)
        if (session.scalar(count) or 0) >= self.max_items:
            whose = "You have" if self.max_shared else "There are"
            raise ConflictError(f"{whose} {self.max_items} {self.noun}s already. Delete one first.")

    def check_shared(self, session: Session, tenant_id: str | None) -> None:
        """Raise `ConflictError` if the tenant shares the most rows."""
        model: Any = self.model
        count = select(func.count()).select_from(model)
        shared = count.where(model.tenant_id == tenant_id, model.is_shared)
        if (session.scalar(shared) or 0) >= self.max_shared:
            raise ConflictError(
                f"{self.max_shared} {self.noun}s are shared already. Delete one first."
            )

    def _permissions(self, scope: Scope, row: T) -> list[Permission]:
        is_own = row.user_id == scope.user_id and row.tenant_id == scope.tenant_id
        needed = (self.own, None if is_own else self.others)
        return [permission for permission in needed if permission is not None]

"""List, create, change and delete budgets. Every call checks the permissions of its scope."""

from datetime import datetime
from typing import Any, NamedTuple, Unpack

from sqlalchemy import case, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import ConflictError
from core.paging import Columns, Page, Paging, list_page
from jobqueue.holds.service import release_hold
from jobqueue.projects.models import Project
from marketplace.budgets.models import Budget, BudgetTarget
from marketplace.budgets.requests import BudgetRequest, checked
from tenants.models import Membership, Tenant, User
from tenants.permissions import Permission
from tenants.quotas import count_rows
from tenants.scope import Scope

MAX_BUDGETS = 1000
BUDGET_SORTS: Columns = {
    "target_name": Budget.target_name,
    "amount": Budget.amount,
    "spent": Budget.spent,
    "created_at": Budget.created_at,
}


_RANK = case({target: rank for rank, target in enumerate(BudgetTarget)}, value=Budget.target)


def list_budgets(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[Budget]:
    """Return the budgets of the scope: of the tenant, then of projects and users by name."""
    scope.require(Permission.VIEW_BILLING)
    statement = scope.select(select(Budget), Budget)
    ordered = statement.order_by(_RANK, Budget.target_name, Budget.id)
    return list_page(session, ordered, BUDGET_SORTS, last=Budget.id, **paging)


def get_budget(session: Session, scope: Scope, budget_id: str) -> Budget:
    """Return a budget of the scope."""
    scope.require(Permission.VIEW_BILLING)
    return scope.get(session, Budget, budget_id, kind="budget")


class TargetChoice(NamedTuple):
    """Whose budget a new one may be: the tenant's with the id "", a project's or a user's."""

    target: BudgetTarget
    ident: str
    name: str


def target_choices(session: Session, scope: Scope) -> list[TargetChoice]:
    """Return what of the scope's tenant may have a budget."""
    scope.require(Permission.MANAGE_BILLING)
    tenant_id = scope.require_tenant()
    tenant = TargetChoice(BudgetTarget.TENANT, "", session.get_one(Tenant, tenant_id).name)
    projects: Any = select(Project.id, Project.name).where(
        Project.tenant_id == tenant_id, Project.archived_at.is_(None)
    )
    users: Any = (
        select(User.id, User.email)
        .join(Membership, Membership.user_id == User.id)
        .where(Membership.tenant_id == tenant_id, Membership.is_active.is_(True))
    )
    return [
        tenant,
        *(
            TargetChoice(BudgetTarget.PROJECT, *row)
            for row in session.execute(projects.order_by(Project.name))
        ),
        *(
            TargetChoice(BudgetTarget.USER, *row)
            for row in session.execute(users.order_by(User.email))
        ),
    ]


def create_budget(
    session: Session, scope: Scope, request: BudgetRequest, *, now: datetime
) -> Budget:
    """Add a budget to the scope's tenant; it counts all of the month, from its beginning.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the target has a budget, or the tenant has `MAX_BUDGETS`.
    """
    scope.require(Permission.MANAGE_BILLING)
    tenant_id = scope.require_tenant()
    if count_rows(session, Budget.tenant_id == tenant_id) >= MAX_BUDGETS:
        raise ConflictError(f"There are {MAX_BUDGETS} budgets. Delete one first.")
    budget = Budget(tenant_id=tenant_id, created_at=now, **checked(session, tenant_id, request))
    session.add(budget)
    return _flushed(session, budget)


def change_budget(session: Session, scope: Scope, budget_id: str, request: BudgetRequest) -> Budget:
    """Replace a budget; what it held may start, and it warns anew from its next evaluation.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the target has another budget.
    """
    scope.require(Permission.MANAGE_BILLING)
    # An evaluation of the present amount ends before, or finds the new one.
    begin_writing(session)
    budget = get_budget(session, scope, budget_id)
    session.refresh(budget, with_for_update=True)
    for name, value in checked(session, budget.tenant_id, request).items():
        setattr(budget, name, value)
    budget.period_at = budget.reached_at = budget.evaluated_at = None
    budget.level_percent = 0
    _flushed(session, budget)
    release_hold(session, budget.id)
    return budget


def delete_budget(session: Session, scope: Scope, budget_id: str) -> None:
    """Delete a budget; what it held may start."""
    scope.require(Permission.MANAGE_BILLING)
    budget = get_budget(session, scope, budget_id)
    session.delete(budget)
    session.flush()
    # After the budget: an evaluation at the same time has added its hold by then, or finds no row.
    release_hold(session, budget.id)


def _flushed(session: Session, budget: Budget) -> Budget:
    name, target = budget.target_name, budget.target.value
    try:
        session.flush()
    except IntegrityError as error:
        message = f"The {target} {name!r} has a budget already. Change that."
        raise ConflictError(message, errors={"target_id": [message]}) from error
    return budget

"""Compare budgets with what was spent: warn, hold new jobs, and stop those that run.

Each warning level is reported once in a month: a guarded update stores it in the transaction that
adds the messages to the outbox. A hold exists while 100 % are spent; a raised amount, a credit or
the next month releases it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from jobqueue.holds.models import JobHold
from jobqueue.holds.service import release_hold, set_hold
from jobqueue.projects.models import Project
from jobqueue.projects.tree import ProjectTree
from marketplace.budgets.models import Budget, BudgetAction, BudgetTarget
from marketplace.budgets.spending import Spending
from tenants.models import Tenant, TenantState, User

LEVELS_PERCENT = (50, 80, 100)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A tenant's budgets: those that reached a warning level, and those whose jobs stop now."""

    warnings: Sequence[Budget] = ()
    stopping: Sequence[str] = ()


def tenants_with_budgets(session: Session) -> list[str]:
    """Return the active tenants with budgets."""
    statement = (
        select(Budget.tenant_id)
        .join(Tenant, Tenant.id == Budget.tenant_id)
        .where(Tenant.state == TenantState.ACTIVE)
        .distinct()
        .order_by(Budget.tenant_id)
    )
    return list(session.scalars(statement))


def evaluate_budgets(session: Session, tenant_id: str, *, now: datetime) -> Evaluated:
    """Update the figures, warning levels and holds of a tenant's budgets."""
    budgets = session.scalars(
        select(Budget).where(Budget.tenant_id == tenant_id).order_by(Budget.id)
    ).all()
    spending = Spending(session, tenant_id, now=now)
    projects = select(Project).where(Project.tenant_id == tenant_id)
    tree = ProjectTree(session.scalars(projects))
    names = _names(session, budgets, tree, tenant_id)
    warnings, stopping = [], []
    for budget in budgets:
        project_ids = _project_ids(budget, tree)
        before = budget.level_percent if budget.period_at == spending.month.since else 0
        if not _update(session, budget, spending, project_ids, names, now=now):
            continue  # it was changed meanwhile: the next evaluation has the new amount
        if budget.level_percent > before:
            warnings.append(budget)
        if budget.reached_at is None or budget.action is BudgetAction.NOTIFY:
            release_hold(session, budget.id)
            continue
        set_hold(session, _hold(budget, project_ids, spending, now=now))
        grace = timedelta(seconds=budget.grace_seconds)
        if budget.action is BudgetAction.STOP_JOBS and budget.reached_at + grace <= now:
            stopping.append(budget.id)
    return Evaluated(warnings, stopping)


def title_of(budget: Budget) -> str:
    """Return what a budget is for, within a sentence."""
    if budget.target is BudgetTarget.TENANT:
        return f"the budget of {budget.target_name}"
    return f"the budget of the {budget.target.value} {budget.target_name}"


def level_of(percent: float) -> int:
    """Return the highest warning level that a percentage has reached; 0 is none."""
    return max((level for level in LEVELS_PERCENT if percent >= level), default=0)


def _update(
    session: Session,
    budget: Budget,
    spending: Spending,
    project_ids: Sequence[str] | None,
    names: dict[str, str],
    *,
    now: datetime,
) -> bool:
    """Store the figures of a budget unless it was changed meanwhile; return whether it was not."""
    user_id = budget.target_id if budget.target is BudgetTarget.USER else None
    spent = spending.of(project_ids=project_ids, user_id=user_id)
    month, is_reached = spending.month.since, spent.amount >= budget.amount
    before = budget.level_percent if budget.period_at == month else 0
    reached_at = budget.reached_at if budget.period_at == month else None
    guarded = update(Budget).where(
        Budget.id == budget.id,
        Budget.amount == budget.amount,
        Budget.level_percent == budget.level_percent,
        Budget.period_at.is_not_distinct_from(budget.period_at),
    )
    values = {
        "target_name": names.get(budget.target_id, budget.target_name),
        "period_at": month,
        "spent": spent.amount,
        "forecast": spent.forecast,
        "level_percent": max(before, level_of(float(100 * spent.amount / budget.amount))),
        "reached_at": (reached_at or now) if is_reached else None,
        "evaluated_at": now,
    }
    if not changed_one(session, guarded.values(values), synchronize_session=False):
        return False
    session.refresh(budget)
    return True


def _hold(
    budget: Budget, project_ids: Sequence[str] | None, spending: Spending, *, now: datetime
) -> JobHold:
    title, month = title_of(budget), spending.month
    return JobHold(
        source_id=budget.id,
        tenant_id=budget.tenant_id,
        project_ids=None if project_ids is None else sorted(project_ids),
        user_id=budget.target_id if budget.target is BudgetTarget.USER else None,
        is_for_rentals=False,
        reason=f"{title[0].upper()}{title[1:]} for {month.since:%B %Y} is spent. Ask an admin for "
        f"a higher one; the next one begins at {month.until:%Y-%m-%d %H:%M} UTC.",
        held_at=now,
    )


def _project_ids(budget: Budget, tree: ProjectTree) -> list[str] | None:
    """Return the projects whose costs a budget counts; None for all costs of the tenant."""
    if budget.target is not BudgetTarget.PROJECT:
        return None
    return [budget.target_id, *(project.id for project in tree.below(budget.target_id))]


def _names(
    session: Session, budgets: Iterable[Budget], tree: ProjectTree, tenant_id: str
) -> dict[str, str]:
    """Return the present names of what budgets are for, by its id."""
    user_ids = [budget.target_id for budget in budgets if budget.target is BudgetTarget.USER]
    emails = select(User.id, User.email).where(User.id.in_(user_ids))
    names = {row[0]: row[1] for row in session.execute(emails)} if user_ids else {}
    names |= {project.id: project.name for project in tree.by_id.values()}
    return names | {"": session.get_one(Tenant, tenant_id).name}

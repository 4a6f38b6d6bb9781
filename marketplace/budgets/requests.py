"""Budgets as users enter them, and their validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.money import ZERO, parse_amount
from core.quantities import format_duration
from core.spec import About
from jobqueue.jobs.end_notices import EMAIL, notify_errors
from jobqueue.projects.models import Project
from marketplace.budgets.models import BudgetAction, BudgetTarget
from tenants.checks import raise_if_invalid
from tenants.models import Membership, Tenant, User

MAX_GRACE_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRequest:
    """A budget as a user writes it; see `marketplace.budgets.models.Budget`."""

    target: Annotated[BudgetTarget, About("Whose costs it counts; of a project, with those below.")]
    amount: Annotated[str, About("For a calendar month in UTC, before taxes, such as `1000.00`.")]
    target_id: Annotated[
        str, About("The project or user, by ID, name or email address; empty for the tenant.")
    ] = ""
    action: Annotated[BudgetAction, About("What happens when it is spent.")] = BudgetAction.NOTIFY
    grace_seconds: Annotated[
        int, About("With `stop_jobs`, from 100 % until running jobs stop, such as `1h`.")
    ] = 3600
    notify: Annotated[
        Sequence[str],
        About("Whom it notifies: `email` is admins, billing users and the user; or receivers."),
    ] = (EMAIL,)


def checked(session: Session, tenant_id: str, request: BudgetRequest) -> dict[str, Any]:
    """Return the columns of a valid request.

    Raises:
        InvalidInputError: names every invalid field.
    """
    errors: dict[str, list[str]] = {"amount": [], "target_id": [], "grace_seconds": []}
    amount = _amount(request.amount, errors["amount"])
    target_id, target_name = _target(session, tenant_id, request, errors["target_id"])
    if not 0 <= request.grace_seconds <= MAX_GRACE_SECONDS:
        longest = format_duration(MAX_GRACE_SECONDS)
        errors["grace_seconds"] = [
            f"grace_seconds is {request.grace_seconds}; enter 0 to {MAX_GRACE_SECONDS} ({longest})."
        ]
    for field, error in notify_errors(session, tenant_id, request.notify):
        errors.setdefault(field, []).append(error)
    raise_if_invalid(errors, "The budget was not saved")
    return {
        "target": request.target,
        "target_id": target_id,
        "target_name": target_name,
        "amount": amount,
        "action": request.action,
        "grace_seconds": request.grace_seconds,
        "notify": list(request.notify),
    }


def _amount(text: str, errors: list[str]) -> Decimal:
    try:
        amount = parse_amount(text)
    except ValueError as error:
        errors.append(str(error))
        return ZERO
    if not amount:
        errors.append("The amount is 0; enter more. To let nobody use GPUs, set a quota.")
    return amount


def _target(
    session: Session, tenant_id: str, request: BudgetRequest, errors: list[str]
) -> tuple[str, str]:
    """Return the id and the name of whose costs the budget counts."""
    wanted = request.target_id.strip()
    if request.target is BudgetTarget.TENANT:
        if wanted:
            errors.append("A budget of the tenant has no target_id; leave it empty.")
        return "", session.get_one(Tenant, tenant_id).name
    if request.target is BudgetTarget.PROJECT:
        statement: Any = select(Project.id, Project.name).where(
            Project.tenant_id == tenant_id,
            Project.archived_at.is_(None),
            or_(Project.id == wanted, Project.name == wanted),
        )
    else:
        statement = (
            select(User.id, User.email)
            .join(Membership, Membership.user_id == User.id)
            .where(
                Membership.tenant_id == tenant_id,
                or_(User.id == wanted, User.email == wanted.lower()),
            )
        )
    row = session.execute(statement).first()
    if row is None:
        kind = request.target.value
        errors.append(f"There is no {kind} {wanted[:100]!r} in this tenant.")
        return wanted, ""
    return row[0], row[1]

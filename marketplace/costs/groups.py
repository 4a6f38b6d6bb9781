"""Costs by project, user and more: sums of billing lines, with what has no lines yet."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, String, case, func, select
from sqlalchemy import cast as cast_to
from sqlalchemy.orm import Session

from core.db import chunked
from core.money import ZERO
from core.paging import Column
from jobqueue.models import Attempt, Job
from jobqueue.projects.models import Project
from jobqueue.states import ALLOCATED_STATES
from jobqueue.usage.ledger import HOUR, read_attempts, read_models, use_by_model
from jobqueue.usage.measuring import Period
from marketplace.charges.models import BillingLine
from marketplace.costs.unbilled import Pricing, UnbilledCost, unbilled_costs
from marketplace.models import Contract
from tenants.models import Appliance, Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_PERIOD = timedelta(days=732)


class CostBy(StrEnum):
    """The key by which costs are grouped; those of `jobqueue.usage.totals.UsageBy`, and more."""

    TENANT = "tenant"
    USER = "user"
    PROJECT = "project"
    BUDGET_LABEL = "budget_label"
    JOB = "job"
    APPLIANCE = "appliance"
    GPU_MODEL = "gpu_model"
    DAY = "day"
    MONTH = "month"
    CONTRACT = "contract"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGroup:
    """What a group costs, before taxes; `name` is "" if what it stands for was deleted."""

    key: str
    name: str
    amount: Decimal


_DAY = cast_to(func.date(BillingLine.at), String(10))
_KEYS: dict[CostBy, Column] = {
    CostBy.TENANT: BillingLine.tenant_id,
    CostBy.USER: func.coalesce(BillingLine.user_id, ""),
    CostBy.PROJECT: func.coalesce(BillingLine.project_id, ""),
    CostBy.BUDGET_LABEL: func.coalesce(Project.budget_label, ""),
    CostBy.JOB: func.coalesce(BillingLine.job_id, ""),
    # Which appliance of a provider a job had is the provider's business.
    CostBy.APPLIANCE: case(
        (BillingLine.contract_id.is_(None), func.coalesce(BillingLine.appliance_id, "")), else_=""
    ),
    CostBy.GPU_MODEL: BillingLine.gpu_model,
    CostBy.DAY: _DAY,
    CostBy.MONTH: func.substr(_DAY, 1, 7),
    CostBy.CONTRACT: func.coalesce(BillingLine.contract_id, ""),
}
_NAMES: dict[CostBy, tuple[Any, Any]] = {
    CostBy.TENANT: (Tenant.id, Tenant.name),
    CostBy.USER: (User.id, User.email),
    CostBy.PROJECT: (Project.id, Project.name),
    CostBy.JOB: (Job.id, Job.name),
    CostBy.APPLIANCE: (Appliance.id, Appliance.name),
    CostBy.CONTRACT: (Contract.id, Contract.offer_name),
}
_WITHOUT = {
    CostBy.PROJECT: "No project",
    CostBy.USER: "No user",
    CostBy.JOB: "No job",
    CostBy.BUDGET_LABEL: "No budget label",
    CostBy.GPU_MODEL: "Other charges and credits",
    CostBy.APPLIANCE: "Rented",
    CostBy.CONTRACT: "Own appliances",
}


def cost_sums(
    session: Session,
    scope: Scope,
    period: Period,
    *,
    by: CostBy,
    now: datetime,
    appliances: Collection[str] | None = None,
) -> dict[str, Decimal]:
    """Return what the groups of a period cost, by key, in the currency of the portal.

    Args:
        session: the session.
        scope: whose costs.
        period: the time.
        by: the grouping.
        now: the time; what is after it is not counted.
        appliances: the ids of own ones; None for all, and for what is rented.

    Raises:
        ForbiddenError: the user may not see costs.
    """
    scope.require(Permission.VIEW_BILLING)
    statement = _of_period(scope, period, _KEYS[by], appliances)
    if by is CostBy.BUDGET_LABEL:
        statement = statement.outerjoin(Project, Project.id == BillingLine.project_id)
    sums: dict[str, Decimal] = {row[0]: row[1] for row in session.execute(statement)}
    # After the lines: what is charged meanwhile must not count twice.
    unbilled = unbilled_costs(session, scope.tenant_id, period, now=now)
    if appliances is not None:
        chosen = set(appliances)
        unbilled = [
            cost for cost in unbilled if not cost.contract_id and cost.appliance_id in chosen
        ]
    labels: Mapping[str | None, str] = {}
    if by is CostBy.BUDGET_LABEL and unbilled:
        labeled = select(Project.id, Project.budget_label).where(Project.budget_label != "")
        labels = {row[0]: row[1] for row in session.execute(labeled)}
    for cost in unbilled:
        key = _key_of(cost, by, labels)
        sums[key] = sums.get(key, ZERO) + cost.amount
    return sums


def cost_groups(
    session: Session, scope: Scope, period: Period, *, by: CostBy, now: datetime
) -> list[CostGroup]:
    """Return the groups of a period with what they cost, the most expensive first.

    Days and months are in their order.

    Raises:
        ForbiddenError: the user may not see costs.
    """
    sums = cost_sums(session, scope, period, by=by, now=now)
    names = _names(session, by, sums)
    groups = [
        CostGroup(key=key, name=names.get(key, ""), amount=amount) for key, amount in sums.items()
    ]
    if by in {CostBy.DAY, CostBy.MONTH}:
        return sorted(groups, key=lambda group: group.key)
    return sorted(groups, key=lambda group: (-group.amount, group.name, group.key))


def job_cost(session: Session, job: Job, *, now: datetime) -> tuple[Decimal, Decimal | None]:
    """Return what a job cost so far, and what it costs an hour if it has GPUs now.

    Everybody who may see the job may see that.
    """
    billed = select(func.sum(BillingLine.amount)).where(
        BillingLine.job_id == job.id, BillingLine.tenant_id == job.tenant_id
    )
    so_far = session.scalar(billed) or ZERO
    begins = [attempt.bound_at for attempt in job.attempts]
    unbilled = (
        unbilled_costs(session, job.tenant_id, Period(min(begins), now), now=now, job_id=job.id)
        if begins
        else []
    )
    return sum((cost.amount for cost in unbilled), so_far), _per_hour(session, job, now=now)


def job_costs(session: Session, jobs: Collection[Job]) -> dict[str, Decimal]:
    """Return what was charged for jobs, by id; those without a price are left out.

    Everybody who may see the jobs may see that. The last hour is charged some minutes after it.
    """
    statement = (
        select(BillingLine.job_id, func.sum(BillingLine.amount))
        .where(
            BillingLine.job_id.in_([job.id for job in jobs]),
            BillingLine.tenant_id.in_({job.tenant_id for job in jobs}),
        )
        .group_by(BillingLine.job_id)
    )
    return {job_id: amount for job_id, amount in session.execute(statement) if job_id}


def _of_period(
    scope: Scope, period: Period, key: Column, appliances: Collection[str] | None
) -> Select[Any]:
    total = func.sum(BillingLine.amount)
    statement: Any = select(key, total).where(
        BillingLine.at >= period.since, BillingLine.at < period.until
    )
    if appliances is not None:
        statement = statement.where(
            BillingLine.contract_id.is_(None), BillingLine.appliance_id.in_(appliances)
        )
    return scope.select(statement.select_from(BillingLine).group_by(key), BillingLine)


def _key_of(cost: UnbilledCost, by: CostBy, labels: Mapping[str | None, str]) -> str:
    return {
        CostBy.TENANT: cost.tenant_id,
        CostBy.USER: cost.user_id or "",
        CostBy.PROJECT: cost.project_id or "",
        CostBy.BUDGET_LABEL: labels.get(cost.project_id, ""),
        CostBy.JOB: cost.job_id,
        CostBy.APPLIANCE: "" if cost.contract_id else cost.appliance_id,
        CostBy.GPU_MODEL: cost.gpu_model,
        CostBy.DAY: f"{cost.hour_at:%Y-%m-%d}",
        CostBy.MONTH: f"{cost.hour_at:%Y-%m}",
        CostBy.CONTRACT: cost.contract_id or "",
    }[by]


def _names(session: Session, by: CostBy, keys: Iterable[str]) -> dict[str, str]:
    if by not in _NAMES:
        names = {key: key for key in keys}
    else:
        ident, name = _NAMES[by]
        rows = (
            row
            for chunk in chunked(list(keys))
            for row in session.execute(select(ident, name).where(ident.in_(chunk)))
        )
        names = {row[0]: row[1] for row in rows}
    return names | ({"": _WITHOUT[by]} if by in _WITHOUT else {})


def _per_hour(session: Session, job: Job, *, now: datetime) -> Decimal | None:
    """Return what the GPUs of a job cost an hour at this time; None if it has none, or no price."""
    running = [attempt for attempt in job.attempts if attempt.state in ALLOCATED_STATES]
    hour = Period(now, now + HOUR)
    pricing, total, has_price = Pricing(session), ZERO, False
    contracts = {attempt.id: attempt.contract_id for attempt in running}
    on_job = read_attempts(session, hour, Attempt.id.in_(contracts)) if running else []
    models = read_models(session, {attempt.site_id for attempt in on_job})
    for attempt in on_job:
        for model, use in use_by_model(attempt, {}, models.get(attempt.site_id, {}), hour).items():
            owned = attempt.tenant_id, contracts[attempt.id], model, now
            has_price |= pricing.price(*owned) is not None
            total += pricing.cost(*owned, use.allocated_milliseconds)
    return total if has_price else None

"""Partition policies of a tenant: list, preview, create, change, order and delete them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Unpack

from msgspec import convert
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import ConflictError
from core.paging import Columns, Page, Paging, list_page
from jobqueue.partitions.checks import MAX_POLICIES, PolicyRequest, policy_errors
from jobqueue.partitions.fleet import (
    Coverage,
    changed_gpus,
    counted,
    coverages,
    gpus_in_use,
    read_fleet,
)
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.partitions.orders import Policy, policy_from
from protocol.gpu_slices import PartitionMode
from tenants.checks import raise_if_invalid
from tenants.fleet.appliances import bump_generations
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

POLICY_SORTS: Columns = {
    "position": GPUPartitionPolicy.position,
    "name": GPUPartitionPolicy.name,
    "created_at": GPUPartitionPolicy.created_at,
}


@dataclass(frozen=True, slots=True)
class _Plan:
    """The policies of a tenant once a request has been saved, and what is wrong with it."""

    policies: Sequence[Policy]
    before: Sequence[Policy]
    place: int
    errors: dict[str, list[str]]


def list_policies(
    session: Session, scope: Scope, **paging: Unpack[Paging]
) -> Page[GPUPartitionPolicy]:
    """Return the partition policies of the scope, in their order."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(GPUPartitionPolicy), GPUPartitionPolicy)
    ordered = statement.order_by(
        GPUPartitionPolicy.tenant_id, GPUPartitionPolicy.position, GPUPartitionPolicy.id
    )
    return list_page(session, ordered, POLICY_SORTS, last=GPUPartitionPolicy.id, **paging)


def get_policy(session: Session, scope: Scope, policy_id: str) -> GPUPartitionPolicy:
    """Return a partition policy of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, GPUPartitionPolicy, policy_id, kind="partition policy")


def summary_of(policy: GPUPartitionPolicy) -> str:
    """Return the mode of a policy in words, such as `MPS, 4 shares`."""
    name = MODE_NAMES[policy.mode]
    if policy.mode is PartitionMode.WHOLE:
        return name
    if policy.mode is not PartitionMode.MIG:
        return f"{name}, {counted(policy.shares, 'share')}"
    if not policy.layout:
        return f"{name} on demand"
    counts = Counter(policy.layout)
    parts = [
        f"{number} x {profile}" if number > 1 else profile for profile, number in counts.items()
    ]
    return f"{name}: {', '.join(parts)}{'; may change' if policy.may_change_layout else ''}"


def coverage_of(session: Session, policies: Sequence[GPUPartitionPolicy]) -> dict[str, Coverage]:
    """Return what policies cover, by their ids; the caller has read them in its scope."""
    result: dict[str, Coverage] = {}
    for tenant_id in {policy.tenant_id for policy in policies}:
        rows = _rows(session, tenant_id)
        fleet, in_use = read_fleet(session, tenant_id), gpus_in_use(session, tenant_id)
        shown = coverages(fleet, [policy_from(row) for row in rows], in_use)
        result |= {row.id: coverage for row, coverage in zip(rows, shown, strict=True)}
    return result


def preview_policy(
    session: Session, scope: Scope, request: PolicyRequest, *, policy_id: str | None = None
) -> Coverage:
    """Return what a policy would cover, without saving it.

    Args:
        session: the session.
        scope: of the user.
        request: the policy.
        policy_id: of the one that it would replace; None for a new one.

    Raises:
        InvalidInputError: with the errors by field, as for saving it.
    """
    scope.require(Permission.VIEW)
    tenant_id = scope.require_tenant()
    present = get_policy(session, scope, policy_id) if policy_id else None
    plan = _planned(session, tenant_id, present, request)
    _raise_errors(plan, request)
    fleet, in_use = read_fleet(session, tenant_id), gpus_in_use(session, tenant_id)
    return coverages(fleet, plan.policies, in_use, before=plan.before)[plan.place]


def create_policy(
    session: Session, scope: Scope, request: PolicyRequest, *, now: datetime
) -> GPUPartitionPolicy:
    """Add a partition policy to the scope's tenant.

    GPUs change once they are idle.

    Raises:
        InvalidInputError: with the errors by field, and the nearest thing that would work.
        ConflictError: the tenant has `MAX_POLICIES`.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    policy = GPUPartitionPolicy(tenant_id=scope.require_tenant(), created_at=now)
    return _save(session, policy, request, is_new=True)


def update_policy(
    session: Session, scope: Scope, policy_id: str, request: PolicyRequest
) -> GPUPartitionPolicy:
    """Change a partition policy, or move it; GPUs change once they are idle.

    Raises:
        InvalidInputError: with the errors by field, and the nearest thing that would work.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    policy = get_policy(session, scope, policy_id)
    return _save(session, policy, request, is_new=False)


def delete_policy(session: Session, scope: Scope, policy_id: str) -> None:
    """Delete a partition policy: its GPUs follow the next one that covers them, or are whole."""
    scope.require(Permission.MANAGE_APPLIANCES)
    policy = get_policy(session, scope, policy_id)
    tenant_id = policy.tenant_id
    fleet = read_fleet(session, tenant_id)
    _lock(session, tenant_id)
    rows = _rows(session, tenant_id)
    before = [policy_from(row) for row in rows]
    session.delete(policy)
    _number([row for row in rows if row.id != policy_id])
    session.flush()
    after = [policy_from(row) for row in _rows(session, tenant_id)]
    bump_generations(session, set(changed_gpus(fleet, after, before).values()))


def move_policy(
    session: Session, scope: Scope, policy_id: str, position: int
) -> GPUPartitionPolicy:
    """Move a partition policy to another place in the order, from 1."""
    policy = get_policy(session, scope, policy_id)
    return update_policy(session, scope, policy_id, request_like(policy, position=position))


def request_like(policy: GPUPartitionPolicy, *, position: int | None = None) -> PolicyRequest:
    """Return a request for the same policy."""
    return replace(convert(policy, PolicyRequest, from_attributes=True), position=position)


def _save(
    session: Session, policy: GPUPartitionPolicy, request: PolicyRequest, *, is_new: bool
) -> GPUPartitionPolicy:
    tenant_id = policy.tenant_id
    present = None if is_new else policy
    # Checking a fleet takes a while, so nobody's writes wait for it.
    _raise_errors(_planned(session, tenant_id, present, request), request)
    fleet = read_fleet(session, tenant_id)
    _lock(session, tenant_id)
    rows = _rows(session, tenant_id)
    if is_new and len(rows) >= MAX_POLICIES:
        raise ConflictError(f"There are {MAX_POLICIES} partition policies. Delete one first.")
    if any(row is not policy and row.name == request.name.strip() for row in rows):
        raise ConflictError("Another policy of this name was saved at the same time. Try again.")
    before = [policy_from(row) for row in rows]
    others = [row for row in rows if row is not policy]
    place = _place(rows, present, request)
    for name, value in _columns(request).items():
        setattr(policy, name, value)
    after = [*others[:place], policy, *others[place:]]
    _number(after)
    session.add(policy)
    session.flush()
    changed = changed_gpus(fleet, [policy_from(row) for row in after], before)
    bump_generations(session, set(changed.values()))
    return policy


def _planned(
    session: Session, tenant_id: str, present: GPUPartitionPolicy | None, request: PolicyRequest
) -> _Plan:
    rows = _rows(session, tenant_id)
    others = [row for row in rows if row is not present]
    place = _place(rows, present, request)
    wanted = policy_from(GPUPartitionPolicy(**_columns(request)))
    policies = [policy_from(row) for row in others]
    policies.insert(place, wanted)
    errors = policy_errors(
        request,
        names=[row.name for row in others],
        policies=policies,
        place=place,
        fleet=read_fleet(session, tenant_id),
    )
    return _Plan(policies, [policy_from(row) for row in rows], place, errors)


def _place(
    rows: Sequence[GPUPartitionPolicy], present: GPUPartitionPolicy | None, request: PolicyRequest
) -> int:
    """Return where a policy comes among the others, from 0."""
    last = len(rows) - (present is not None)
    if request.position is not None:
        return min(max(request.position - 1, 0), last)
    return last if present is None else rows.index(present)


def _columns(request: PolicyRequest) -> dict[str, object]:
    return {
        "name": request.name.strip(),
        "gpu_model": request.gpu_model.strip(),
        "labels": dict(request.labels),
        "mode": request.mode,
        "layout": list(request.layout),
        "may_change_layout": request.may_change_layout,
        "shares": request.shares,
    }


def _number(rows: Sequence[GPUPartitionPolicy]) -> None:
    for position, row in enumerate(rows, start=1):
        row.position = position


def _rows(session: Session, tenant_id: str) -> Sequence[GPUPartitionPolicy]:
    return session.scalars(
        select(GPUPartitionPolicy)
        .where(GPUPartitionPolicy.tenant_id == tenant_id)
        .order_by(GPUPartitionPolicy.position, GPUPartitionPolicy.id)
        # After the lock, others may have changed what was read before.
        .execution_options(populate_existing=True)
    ).all()


def _lock(session: Session, tenant_id: str) -> None:
    """Let changes of one tenant's policies wait for each other, and void plans of placement."""
    begin_writing(session)
    session.execute(
        update(Tenant)
        .where(Tenant.id == tenant_id)
        .values(placement_generation=Tenant.placement_generation + 1),
        execution_options={"synchronize_session": False},
    )


def _raise_errors(plan: _Plan, request: PolicyRequest) -> None:
    raise_if_invalid(plan.errors, f"The policy {request.name[:60]!r} was not saved")

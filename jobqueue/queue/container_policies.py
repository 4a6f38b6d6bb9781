"""The container policies that the jobs of a tenant may use, and which one is the default.

An admin of the tenant chooses them. A job stores its policy when it is submitted, and keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.models import TenantContainerPolicies
from protocol.job_spec import ContainerPolicy
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant

DESCRIPTIONS = {
    ContainerPolicy.RESTRICTED: "Root in the container has no capabilities. Most images run.",
    ContainerPolicy.STANDARD: "Root can change owners and users, as images of servers and "
    "apt-get need.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """The policies that a tenant's jobs may use; without a choice, only the most confined one."""

    allowed: Sequence[ContainerPolicy] = (ContainerPolicy.RESTRICTED,)
    default: ContainerPolicy = ContainerPolicy.RESTRICTED


def read_policies(session: Session, scope: Scope, tenant_id: str) -> PolicyChoice:
    """Return the policies of a tenant in the scope."""
    return policies_of(session, get_tenant(session, scope, tenant_id).id)


def set_policies(
    session: Session, scope: Scope, tenant_id: str, choice: PolicyChoice
) -> PolicyChoice:
    """Set the policies of a tenant in the scope; jobs that were submitted before keep theirs.

    Raises:
        InvalidInputError: no policy is allowed, or the default is not.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    get_tenant(session, scope, tenant_id)
    allowed = [policy for policy in ContainerPolicy if policy in choice.allowed]
    if not allowed:
        raise _invalid("allowed", "Allow at least one container policy.")
    if choice.default not in allowed:
        raise _invalid(
            "default",
            f"The default {choice.default.value!r} is not allowed. Allow it, or choose another.",
        )
    row = session.get(TenantContainerPolicies, tenant_id)
    if row is None:
        row = TenantContainerPolicies(tenant_id=tenant_id)
        session.add(row)
    row.allowed, row.default = [policy.value for policy in allowed], choice.default
    session.flush()
    return PolicyChoice(allowed=allowed, default=choice.default)


def policies_of(session: Session, tenant_id: str) -> PolicyChoice:
    """Return the policies of a tenant."""
    row = session.get(TenantContainerPolicies, tenant_id)
    if row is None:
        return PolicyChoice()
    return PolicyChoice(
        allowed=[ContainerPolicy(name) for name in row.allowed], default=row.default
    )


def policy_for_job(session: Session, tenant_id: str, wanted: str | None) -> ContainerPolicy:
    """Return the policy of a new job; None is the tenant's default.

    Raises:
        InvalidInputError: the tenant's jobs may not use it.
    """
    choice = policies_of(session, tenant_id)
    if wanted is None:
        return choice.default
    if wanted in choice.allowed:
        return ContainerPolicy(wanted)
    names = ", ".join(policy.value for policy in choice.allowed)
    raise _invalid(
        "container_policy",
        f"Jobs of this tenant may not use the container policy {wanted!r}, only: {names}. An admin "
        "can change this.",
    )


def _invalid(field: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, errors={field: [message]})

"""Cleanup policies: when images and stopped containers of a tenant's appliances are deleted."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.storage.models import CleanupPolicies
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import get_tenant

MAX_SITES = 200
MAX_SITE_LENGTH = 100
MAX_DAYS = 3650
_MAXIMA = {"image_days": MAX_DAYS, "disk_percent": 100, "container_days": MAX_DAYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPolicy:
    """The limits above which images and containers are deleted.

    Attributes:
        is_automatic: whether they are deleted when the agent reports, every ten minutes; otherwise
            only when a user starts it.
        image_days: images that no job used for so many days.
        disk_percent: while more of the disk is used, further images, the least recently used first.
        container_days: stopped containers of others, if they are included, after so many days.
        includes_others: whether images that no job used, and containers of no job, are included.
    """

    is_automatic: bool = True
    image_days: int = 30
    disk_percent: int = 85
    container_days: int = 7
    includes_others: bool = False


def read_policies(session: Session, scope: Scope, tenant_id: str) -> dict[str, CleanupPolicy]:
    """Return the policies of a tenant in the scope by site; `""` is for all others."""
    return policies_of(session, get_tenant(session, scope, tenant_id).id)


def policies_of(session: Session, tenant_id: str) -> dict[str, CleanupPolicy]:
    """Return the policies of a tenant by site."""
    row = session.get(CleanupPolicies, tenant_id)
    stored = {site: CleanupPolicy(**values) for site, values in row.policies.items()} if row else {}
    return {"": CleanupPolicy()} | stored


def policy_for(session: Session, tenant_id: str, site: str) -> tuple[CleanupPolicy, str]:
    """Return the policy of an appliance at a site, and the site it is of."""
    policies = policies_of(session, tenant_id)
    policy_site = site if site in policies else ""
    return policies[policy_site], policy_site


def set_policies(
    session: Session, scope: Scope, tenant_id: str, policies: Mapping[str, CleanupPolicy]
) -> dict[str, CleanupPolicy]:
    """Replace the policies of a tenant; without one for `""`, that is the default.

    Raises:
        InvalidInputError: names every invalid field.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    get_tenant(session, scope, tenant_id)
    errors: dict[str, list[str]] = {}
    if len(policies) > MAX_SITES:
        errors["site"] = [f"There are policies for {len(policies)} sites; use at most {MAX_SITES}."]
    for site, policy in policies.items():
        if len(site) > MAX_SITE_LENGTH:
            errors["site"] = [f"A site has at most {MAX_SITE_LENGTH} characters."]
        for name, maximum in _MAXIMA.items():
            value = getattr(policy, name)
            if not 1 <= value <= maximum:
                errors.setdefault(name, []).append(f"{name} is {value}; enter 1 to {maximum}.")
    if errors:
        details = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(f"The policies were not changed. {details}", errors=errors)
    row = session.get(CleanupPolicies, tenant_id)
    if row is None:
        row = CleanupPolicies(tenant_id=tenant_id)
        session.add(row)
    row.policies = {site: asdict(policy) for site, policy in policies.items()}
    session.flush()
    return policies_of(session, tenant_id)

"""The permissions of each role, and of the *scopes* that limit API tokens.

A limited token has the permissions that both its user's role and its scopes have.
"""

from collections.abc import Iterable
from enum import StrEnum

from tenants.models import Role


class Permission(StrEnum):
    """A permission; its value completes the sentence "Your role may not ..."."""

    VIEW = "view the tenant"
    SUBMIT_JOBS = "submit jobs"
    STOP_ANY_JOB = "stop other users' jobs"
    OPEN_SHELLS = "open terminals and copy files of jobs"
    PUSH_IMAGES = "push or delete container images"
    EDIT_DATASETS = "add or change datasets"
    EDIT_ALERTS = "change alert rules, silences and receivers"
    SAVE_REPORTS = "save and schedule reports"
    EDIT_DASHBOARDS = "change dashboards"
    EDIT_ANY_DASHBOARD = "change other users' dashboards"
    MANAGE_DATA = "change data connections and other users' datasets"
    MANAGE_APPLIANCES = "add or change appliances"
    MANAGE_PROJECTS = "change projects and quotas"
    MANAGE_USERS = "manage users"
    VIEW_AUDIT = "read the audit log"
    USE_SUPPORT = "open and answer support tickets"
    RENT = "rent appliances of providers"
    MANAGE_OFFERS = "offer appliances to other tenants"
    VERIFY = "verify appliances"
    VIEW_BILLING = "see costs and invoices of the tenant"
    MANAGE_BILLING = "change prices, budgets and billing data"
    MANAGE_TENANTS = "manage tenants"
    OPERATE = "operate the platform"


_P = Permission
_VIEWER = frozenset({_P.VIEW})
_MEMBER = _VIEWER | {
    *(_P.SUBMIT_JOBS, _P.OPEN_SHELLS, _P.PUSH_IMAGES, _P.EDIT_ALERTS, _P.SAVE_REPORTS),
    *(_P.EDIT_DASHBOARDS, _P.EDIT_DATASETS, _P.USE_SUPPORT),
}
_ADMIN = _MEMBER | {
    *(_P.STOP_ANY_JOB, _P.EDIT_ANY_DASHBOARD, _P.MANAGE_APPLIANCES),
    *(_P.MANAGE_PROJECTS, _P.MANAGE_USERS, _P.VIEW_AUDIT, _P.MANAGE_DATA),
    *(_P.RENT, _P.MANAGE_OFFERS, _P.VERIFY, _P.VIEW_BILLING, _P.MANAGE_BILLING),
}

PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.ADMIN: _ADMIN,
    Role.OPERATOR: frozenset(
        {
            *(_P.VIEW, _P.PUSH_IMAGES, _P.EDIT_DASHBOARDS, _P.MANAGE_USERS, _P.VIEW_AUDIT),
            *(_P.MANAGE_TENANTS, _P.OPERATE, _P.VIEW_BILLING, _P.MANAGE_BILLING, _P.VERIFY),
            _P.USE_SUPPORT,
        }
    ),
    Role.BILLING: _VIEWER | {_P.VIEW_BILLING, _P.MANAGE_BILLING, _P.USE_SUPPORT},
}

TOKEN_SCOPES: dict[str, frozenset[Permission]] = {
    "read": frozenset({_P.VIEW}),
    "jobs": frozenset({_P.VIEW, _P.SUBMIT_JOBS, _P.STOP_ANY_JOB}),
    "shells": frozenset({_P.VIEW, _P.OPEN_SHELLS}),
    "images": frozenset({_P.VIEW, _P.PUSH_IMAGES}),
    "datasets": frozenset({_P.VIEW, _P.EDIT_DATASETS, _P.MANAGE_DATA}),
    "alerts": frozenset({_P.VIEW, _P.EDIT_ALERTS}),
    "reports": frozenset({_P.VIEW, _P.SAVE_REPORTS}),
    "dashboards": frozenset({_P.VIEW, _P.EDIT_DASHBOARDS, _P.EDIT_ANY_DASHBOARD}),
    "appliances": frozenset({_P.VIEW, _P.MANAGE_APPLIANCES}),
    "projects": frozenset({_P.VIEW, _P.MANAGE_PROJECTS}),
    "users": frozenset({_P.VIEW, _P.MANAGE_USERS}),
    "support": frozenset({_P.VIEW, _P.USE_SUPPORT}),
    "market": frozenset({_P.VIEW, _P.RENT, _P.MANAGE_OFFERS, _P.VERIFY}),
    "billing": frozenset({_P.VIEW, _P.VIEW_BILLING, _P.MANAGE_BILLING}),
    "audit": frozenset({_P.VIEW_AUDIT}),
    "operator": frozenset({_P.VIEW, _P.MANAGE_TENANTS, _P.OPERATE}),
}


def is_allowed(role: Role, permission: Permission) -> bool:
    """Return whether the role has the permission."""
    return permission in PERMISSIONS[role]


def permissions_of(role: Role, scopes: Iterable[str] = ()) -> frozenset[Permission]:
    """Return the permissions of a role, limited by a token's scopes if there are any."""
    named = list(scopes)
    if not named:
        return PERMISSIONS[role]
    # A scope of an earlier version has no permissions.
    allowed = frozenset[Permission]().union(*(TOKEN_SCOPES.get(name, ()) for name in named))
    return PERMISSIONS[role] & allowed

"""The permission table: which role may do what. Code, tests and documentation share it."""

from enum import StrEnum

from tenants.models import Role


class Permission(StrEnum):
    """Something a role may be allowed to do, worded to follow "may not"."""

    VIEW = "view the tenant"
    SUBMIT_JOBS = "submit jobs"
    STOP_ANY_JOB = "stop other people's jobs"
    EDIT_ALERTS = "change alert rules and receivers"
    MANAGE_APPLIANCES = "add or change appliances"
    MANAGE_USERS = "manage users"
    MANAGE_TENANTS = "manage tenants"


_VIEWER = frozenset({Permission.VIEW})
_MEMBER = _VIEWER | {Permission.SUBMIT_JOBS, Permission.EDIT_ALERTS}
_ADMIN = _MEMBER | {
    Permission.STOP_ANY_JOB,
    Permission.MANAGE_APPLIANCES,
    Permission.MANAGE_USERS,
}

PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.ADMIN: _ADMIN,
    Role.OPERATOR: frozenset({Permission.VIEW, Permission.MANAGE_TENANTS, Permission.MANAGE_USERS}),
}


def is_allowed(role: Role, permission: Permission) -> bool:
    """Whether the role has the permission."""
    return permission in PERMISSIONS[role]

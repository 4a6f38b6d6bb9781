"""The authenticated user of a request: their tenant, permissions and credential."""

from dataclasses import dataclass
from enum import StrEnum

from tenants.models import SupportSession, Tenant, User
from tenants.scope import Scope, active_memberships


class Via(StrEnum):
    """The way in which the user authenticated."""

    SESSION = "browser"
    TOKEN = "API token"  # noqa: S105 - a label
    PASSWORD = "password"  # noqa: S105 - a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated user, and what they may see and do.

    `tenant` is the selected one; None is the operator's view of all tenants. The credential is a
    login session or an API token. `support_session` is set while an operator views the tenant as
    this user.
    """

    user: User
    scope: Scope
    tenant: Tenant | None
    via: Via
    credential_id: str | None = None
    credential_name: str = ""
    support_session: SupportSession | None = None


def principal_of(
    user: User,
    *,
    via: Via,
    tenant_id: str | None = None,
    credential_id: str | None = None,
    credential_name: str = "",
    support_session: SupportSession | None = None,
    token_scopes: tuple[str, ...] = (),
) -> Principal | None:
    """Return the principal for a user; None if the user may not sign in."""
    if not user.is_active:
        return None
    memberships = active_memberships(user)
    if tenant_id is None and user.is_operator:
        scope, tenant = Scope.of(user), None
    else:
        # A browser falls back to another tenant when its own was left or suspended.
        matching = [
            membership for membership in memberships if tenant_id in {None, membership.tenant_id}
        ]
        matching = matching or (memberships if via is Via.SESSION else [])
        if not matching:
            return None
        scope, tenant = Scope.of_membership(matching[0]), matching[0].tenant
    return Principal(
        user=user,
        scope=scope.limited(token_scopes) if token_scopes else scope,
        tenant=tenant,
        via=via,
        credential_id=credential_id,
        credential_name=credential_name,
        support_session=support_session,
    )

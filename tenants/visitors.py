"""Who stands at the portal's door: a user, in which tenant, by which way in."""

from dataclasses import dataclass
from enum import StrEnum

from tenants.models import SupportVisit, Tenant, User
from tenants.scope import Scope, memberships_in_force


class Via(StrEnum):
    """How somebody came in."""

    SESSION = "browser"
    TOKEN = "API token"  # noqa: S105 - words for people
    PASSWORD = "password"  # noqa: S105 - likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Somebody who has proved who they are.

    Attributes:
        user: as whom they act.
        scope: what they may see and do.
        tenant: where they are; None is the operator's view of all.
        via: their way in.
        credential_id: the login session or API token.
        credential_name: what the API token is called.
        visit: set while an operator acts as the user, to help.
    """

    user: User
    scope: Scope
    tenant: Tenant | None
    via: Via
    credential_id: str | None = None
    credential_name: str = ""
    visit: SupportVisit | None = None


def visitor_of(
    user: User,
    *,
    via: Via,
    tenant_id: str | None = None,
    credential_id: str | None = None,
    credential_name: str = "",
    visit: SupportVisit | None = None,
    token_scopes: tuple[str, ...] = (),
) -> Visitor | None:
    """Return a user at the door; None where they may not come in (any more)."""
    if not user.is_active:
        return None
    memberships = memberships_in_force(user)
    if tenant_id is None and user.is_operator:
        scope, tenant = Scope.of(user), None
    else:
        # A tenant that was left, or suspended, is as good as none chosen for a browser.
        found = [one for one in memberships if tenant_id in {None, one.tenant_id}]
        found = found or (memberships if via is Via.SESSION else [])
        if not found:
            return None
        scope, tenant = Scope.of_membership(found[0]), found[0].tenant
    return Visitor(
        user=user,
        scope=scope.limited(token_scopes) if token_scopes else scope,
        tenant=tenant,
        via=via,
        credential_id=credential_id,
        credential_name=credential_name,
        visit=visit,
    )

"""What an operation asks of who calls it: a permission, or no more than being the one it is about.

An API token of few scopes is held to the same: it never does more than its scopes name.
"""

from enum import StrEnum

from portal.context import current_scope
from tenants.permissions import TOKEN_SCOPES, Permission


class Own(StrEnum):
    """What one does with one's own account: no permission is asked."""

    ANY = "Anybody may, by any token."
    UNLIMITED = "Anybody may; not by a token that is limited to scopes."


Need = Permission | Own


def require(need: Need) -> None:
    """Raise `ForbiddenError` unless the one who calls has what the operation asks."""
    if isinstance(need, Permission):
        current_scope().require(need)
    elif need is Own.UNLIMITED:
        current_scope().require_unlimited()


def described(need: Need) -> str:
    """Return a sentence for the API's description."""
    if isinstance(need, Own):
        return need.value
    scopes = [f"`{name}`" for name, allowed in TOKEN_SCOPES.items() if need in allowed]
    return f"Asks for the permission to {need.value} (scopes of a token: {', '.join(scopes)})."

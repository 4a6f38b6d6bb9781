"""API tokens: secrets with which programs act as a user in one tenant.

A token has the permissions that both its user's role and its *scopes*
(`permissions.TOKEN_SCOPES`) have; without scopes, all of its user's. Only hashes are stored.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.ids import hash_secret, new_secret
from core.paging import Columns, Page, Paging, list_page
from tenants.checks import raise_if_invalid
from tenants.models import APIToken, Role
from tenants.permissions import PERMISSIONS, TOKEN_SCOPES, Permission
from tenants.principals import Principal, Via, principal_of
from tenants.scope import Scope

API_TOKEN_PREFIX = "vdt"  # noqa: S105 - a prefix, not a secret
MAX_TOKEN_NAME_LENGTH = 100
MAX_LIFETIME_DAYS = 3660

TOKEN_SORTS: Columns = {
    "name": APIToken.name,
    "created_at": APIToken.created_at,
    "expires_at": APIToken.expires_at,
    "last_used_at": APIToken.last_used_at,
}


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The scopes and the lifetime of a token; no scopes and no lifetime are unlimited."""

    scopes: tuple[str, ...] = ()
    lifetime: timedelta | None = None


UNLIMITED = TokenLimits()


def create_api_token(
    session: Session, scope: Scope, *, name: str, limits: TokenLimits = UNLIMITED, now: datetime
) -> tuple[APIToken, str]:
    """Create a token that acts as the scope's user; return it with its secret, shown only now.

    Raises:
        ForbiddenError: the caller uses a limited token.
        InvalidInputError: the name, the scopes or the lifetime are invalid.
    """
    scope.require_unlimited()
    name = name.strip()
    errors = {"name": [], "scopes": _scope_errors(scope.role, limits.scopes), "lifetime_days": []}
    if not 1 <= len(name) <= MAX_TOKEN_NAME_LENGTH:
        errors["name"] = [
            f"The name must have 1 to {MAX_TOKEN_NAME_LENGTH} characters; it has {len(name)}."
        ]
    longest = timedelta(days=MAX_LIFETIME_DAYS)
    if limits.lifetime is not None and not timedelta() < limits.lifetime <= longest:
        errors["lifetime_days"] = [f"Choose at most {MAX_LIFETIME_DAYS} days, or no expiry."]
    raise_if_invalid(errors, "The token can't be created")
    secret = new_secret(API_TOKEN_PREFIX)
    token = APIToken(
        user_id=scope.user_id,
        tenant_id=scope.tenant_id,
        name=name,
        scopes=[token_scope for token_scope in TOKEN_SCOPES if token_scope in limits.scopes],
        secret_hash=hash_secret(secret),
        created_at=now,
        expires_at=None if limits.lifetime is None else now + limits.lifetime,
    )
    session.add(token)
    session.flush()
    return token, secret


def scopes_for(role: Role) -> list[str]:
    """Return the token scopes that are useful to a role."""
    allowed = PERMISSIONS[role]
    return [
        name
        for name, permissions in TOKEN_SCOPES.items()
        if name == "read" or (permissions - {Permission.VIEW}) & allowed
    ]


def list_api_tokens(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[APIToken]:
    """Return the user's own tokens, newest first, including revoked ones."""
    statement = select(APIToken).where(APIToken.user_id == scope.user_id)
    statement = statement.order_by(APIToken.created_at.desc(), APIToken.id.desc())
    return list_page(session, statement, TOKEN_SORTS, last=APIToken.id, **paging)


def get_api_token(session: Session, scope: Scope, token_id: str) -> APIToken:
    """Return one of the user's own tokens."""
    token = session.get(APIToken, token_id)
    if token is None or token.user_id != scope.user_id:
        raise NotFoundError.of("API token", token_id)
    return token


def revoke_api_token(session: Session, scope: Scope, token_id: str, *, now: datetime) -> APIToken:
    """Revoke one of the user's own tokens.

    Raises:
        ForbiddenError: the caller uses a limited token.
    """
    scope.require_unlimited()
    token = get_api_token(session, scope, token_id)
    token.revoked_at = token.revoked_at or now
    session.flush()
    return token


def revoke_older_tokens(session: Session, scope: Scope, current: APIToken, *, now: datetime) -> int:
    """Revoke the user's other tokens of this name and tenant; return how many."""
    statement = select(APIToken).where(
        APIToken.user_id == scope.user_id,
        APIToken.tenant_id == current.tenant_id,  # None becomes IS NULL
        APIToken.name == current.name,
        APIToken.id != current.id,
        APIToken.revoked_at.is_(None),
    )
    older = session.scalars(statement).all()
    for token in older:
        token.revoked_at = now
    session.flush()
    return len(older)


def token_principal(session: Session, secret: str, *, now: datetime) -> Principal | None:
    """Return the user of a token; None if it is unknown, revoked or expired."""
    token = session.scalar(select(APIToken).where(APIToken.secret_hash == hash_secret(secret)))
    if token is None or not is_token_active(token, now=now):
        return None
    return principal_of(
        token.user,
        via=Via.TOKEN,
        tenant_id=token.tenant_id,
        credential_id=token.id,
        credential_name=token.name,
        token_scopes=tuple(token.scopes),
    )


def is_token_active(token: APIToken, *, now: datetime) -> bool:
    """Return whether a token is neither revoked nor expired."""
    ends = (token.revoked_at, token.expires_at)
    return not any(end is not None and end <= now for end in ends)


def _scope_errors(role: Role, scopes: tuple[str, ...]) -> list[str]:
    useful = scopes_for(role)
    wrong = [name for name in scopes if name not in useful]
    if not wrong:
        return []
    return [f"{', '.join(wrong)}: choose among {', '.join(useful)}."]

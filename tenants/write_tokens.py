"""Write tokens: with one, programs other than the agent send samples of hosts.

A token is of one tenant and may be limited to an appliance or a pattern of names. It can do nothing
but write samples.
"""

from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Unpack

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.ids import hash_secret, new_secret
from core.paging import Columns, Page, Paging, list_page
from tenants.fleet.agents import refresh_registry
from tenants.fleet.appliance_changes import MAX_NAME_LENGTH, length_errors
from tenants.models import Appliance, WriteToken
from tenants.permissions import Permission
from tenants.scope import Scope

WRITE_TOKEN_PREFIX = "vdw"  # noqa: S105 - the beginning of every token
ANY_APPLIANCE = "*"
MAX_LIFETIME = timedelta(days=3660)
MAX_LISTED_HOSTS = 100
WRITE_TOKEN_SORTS: Columns = {
    "name": WriteToken.name,
    "created_at": WriteToken.created_at,
    "expires_at": WriteToken.expires_at,
    "last_used_at": WriteToken.last_used_at,
}
_PATTERN_CHARACTERS = frozenset("*?[]!")


def create_write_token(
    session: Session,
    scope: Scope,
    *,
    name: str = "",
    appliance_pattern: str = ANY_APPLIANCE,
    lifetime: timedelta,
    now: datetime,
) -> tuple[WriteToken, str]:
    """Create a write token of the scope's tenant; return it with its secret."""
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    errors = length_errors(name=name)
    if not 1 <= len(appliance_pattern) <= MAX_NAME_LENGTH:
        advice = f"an appliance's name or a pattern of up to {MAX_NAME_LENGTH} characters"
        errors["appliance_pattern"] = [f"Enter {advice}, or * for all."]
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        errors["lifetime"] = [
            f"The lifetime is {lifetime}; choose at most {MAX_LIFETIME.days} days."
        ]
    if errors:
        raise InvalidInputError("The write token was not created.", errors=errors)
    secret = new_secret(WRITE_TOKEN_PREFIX)
    token = WriteToken(
        tenant_id=tenant_id,
        name=name,
        appliance_pattern=appliance_pattern,
        secret_hash=hash_secret(secret),
        created_by=scope.user_id or None,
        created_at=now,
        expires_at=now + lifetime,
    )
    session.add(token)
    session.flush()
    return token, secret


def list_write_tokens(
    session: Session, scope: Scope, *, usable_at: datetime | None = None, **paging: Unpack[Paging]
) -> Page[WriteToken]:
    """Return the tenant's write tokens, newest first; `usable_at` selects usable ones."""
    scope.require(Permission.MANAGE_APPLIANCES)
    statement = scope.select(select(WriteToken), WriteToken)
    if usable_at is not None:
        statement = statement.where(
            WriteToken.expires_at > usable_at, WriteToken.revoked_at.is_(None)
        )
    tokens = statement.order_by(WriteToken.id.desc())
    return list_page(session, tokens, WRITE_TOKEN_SORTS, last=WriteToken.id, **paging)


def get_write_token(session: Session, scope: Scope, token_id: str) -> WriteToken:
    """Return a write token in the scope."""
    scope.require(Permission.MANAGE_APPLIANCES)
    return scope.get(session, WriteToken, token_id, kind="write token")


def revoke_write_token(
    session: Session, scope: Scope, token_id: str, *, now: datetime
) -> WriteToken:
    """Revoke a write token: what it sends is refused at once."""
    token = get_write_token(session, scope, token_id)
    token.revoked_at = token.revoked_at or now
    refresh_registry(session)
    return token


def hosts_of(session: Session, scope: Scope, token_id: str) -> list[Appliance]:
    """Return the hosts without an agent whose readings come with a token, the latest first."""
    token = get_write_token(session, scope, token_id)
    statement = (
        select(Appliance)
        .where(Appliance.tenant_id == token.tenant_id, Appliance.sender.like(f"%:{token.id}"))
        .order_by(Appliance.last_seen_at.desc(), Appliance.id)
        .limit(MAX_LISTED_HOSTS)
    )
    return list(session.scalars(statement))


def is_single(pattern: str) -> bool:
    """Return whether a pattern is the name of one appliance."""
    return _PATTERN_CHARACTERS.isdisjoint(pattern)


def covers(pattern: str, name: str) -> bool:
    """Return whether a token with this pattern may write samples of an appliance."""
    return fnmatchcase(name, pattern)

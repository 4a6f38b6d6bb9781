"""API tokens: secrets with which programs act as a user in one tenant, for so long and so much.

A token does what its user's role and its own *scopes* (`permissions.TOKEN_SCOPES`) both allow; a
token without scopes does all that its user may. Only hashes of secrets are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError
from core.ids import hash_secret, new_secret
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.models import APIToken, Role
from tenants.models.columns import ADDRESS_LENGTH
from tenants.permissions import PERMISSIONS, TOKEN_SCOPES, Permission
from tenants.scope import Scope
from tenants.visitors import Via, Visitor, visitor_of

API_TOKEN_PREFIX = "vdt"  # noqa: S105 - a prefix, not a secret
MAX_TOKEN_NAME_LENGTH = 100
MAX_LIFETIME_DAYS = 3660
# That a token was used is written down at most so often.
SEEN_EVERY = timedelta(minutes=1)

TOKEN_SORTS: Columns = {
    "name": APIToken.name,
    "created_at": APIToken.created_at,
    "expires_at": APIToken.expires_at,
    "last_used_at": APIToken.last_used_at,
}


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """How much a token may do, and how long.

    Attributes:
        scopes: names of `TOKEN_SCOPES`; none is all that its user may.
        lifetime: until it expires; None is never.
    """

    scopes: tuple[str, ...] = ()
    lifetime: timedelta | None = None


UNLIMITED = TokenLimits()


def create_api_token(
    session: Session, scope: Scope, *, name: str, limits: TokenLimits = UNLIMITED, now: datetime
) -> tuple[APIToken, str]:
    """Make a token that acts as the scope's user; return it with its secret, shown only now.

    Raises:
        ForbiddenError: a token of few scopes asks: it must not widen itself.
        InvalidInputError: no name, or scopes or a lifetime that can't be.
    """
    scope.require_unlimited()
    name = name.strip()
    _refuse_faults(
        {
            "name": _name_faults(name),
            "scopes": _scope_faults(scope.role, limits.scopes),
            "lifetime_days": _lifetime_faults(limits.lifetime),
        }
    )
    secret = new_secret(API_TOKEN_PREFIX)
    token = APIToken(
        user_id=scope.user_id,
        tenant_id=scope.tenant_id,
        name=name,
        scopes=[known for known in TOKEN_SCOPES if known in limits.scopes],
        secret_hash=hash_secret(secret),
        created_at=now,
        expires_at=None if limits.lifetime is None else now + limits.lifetime,
    )
    session.add(token)
    session.flush()
    return token, secret


def scopes_for(role: Role) -> list[str]:
    """Return the scopes that are of use to a role: those that name something it may do."""
    allowed = PERMISSIONS[role]
    return [
        name
        for name, permissions in TOKEN_SCOPES.items()
        if name == "read" or (permissions - {Permission.VIEW}) & allowed
    ]


def list_api_tokens(
    session: Session,
    scope: Scope,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[APIToken]:
    """Return the user's own tokens, newest first, the revoked ones too."""
    statement = select(APIToken).where(APIToken.user_id == scope.user_id)
    statement = sorted_by(statement, sort or "-created_at", TOKEN_SORTS, last=APIToken.id)
    return paginate(session, statement, number=page, size=page_size)


def get_api_token(session: Session, scope: Scope, token_id: str) -> APIToken:
    """Return one of the user's own tokens.

    Raises:
        NotFoundError: it is not there, or somebody else's.
    """
    token = session.get(APIToken, token_id)
    if token is None or token.user_id != scope.user_id:
        raise NotFoundError.of("API token", token_id)
    return token


def revoke_api_token(session: Session, scope: Scope, token_id: str, *, now: datetime) -> APIToken:
    """End one of the user's own tokens; doing it twice keeps the first instant.

    Raises:
        ForbiddenError: a token of few scopes asks: it must not take the others away.
    """
    scope.require_unlimited()
    token = get_api_token(session, scope, token_id)
    token.revoked_at = token.revoked_at or now
    session.flush()
    return token


def revoke_older_tokens(session: Session, scope: Scope, kept: APIToken, *, now: datetime) -> int:
    """End the user's other tokens of a token's name, in the same tenant; return how many."""
    statement = select(APIToken).where(
        APIToken.user_id == scope.user_id,
        APIToken.tenant_id.is_(None)
        if kept.tenant_id is None
        else APIToken.tenant_id == kept.tenant_id,
        APIToken.name == kept.name,
        APIToken.id != kept.id,
        APIToken.revoked_at.is_(None),
    )
    older = session.scalars(statement).all()
    for token in older:
        token.revoked_at = now
    session.flush()
    return len(older)


def token_visitor(
    session: Session, secret: str, *, now: datetime, address: str = ""
) -> Visitor | None:
    """Return who a program acts as, or None for an unknown, revoked or expired token.

    When it was used, and from where, is written down at most once a minute.
    """
    found = session.scalar(select(APIToken).where(APIToken.secret_hash == hash_secret(secret)))
    if found is None or not is_in_force(found, now=now):
        return None
    visitor = visitor_of(
        found.user,
        via=Via.TOKEN,
        tenant_id=found.tenant_id,
        credential_id=found.id,
        credential_name=found.name,
        token_scopes=tuple(found.scopes),
    )
    if visitor is not None and _is_due(found, now=now):
        _note_used(session, found.id, now=now, address=address)
    return visitor


def is_in_force(token: APIToken, *, now: datetime) -> bool:
    """Whether a token is neither revoked nor expired."""
    ends = (token.revoked_at, token.expires_at)
    return not any(end is not None and end <= now for end in ends)


def _is_due(token: APIToken, *, now: datetime) -> bool:
    return token.last_used_at is None or token.last_used_at <= now - SEEN_EVERY


def _note_used(session: Session, token_id: str, *, now: datetime, address: str) -> None:
    """Write down that a token was used; of several requests at once, one does."""
    is_due = or_(APIToken.last_used_at.is_(None), APIToken.last_used_at <= now - SEEN_EVERY)
    session.execute(
        update(APIToken)
        .where(APIToken.id == token_id, is_due)
        .values(last_used_at=now, last_used_address=address[:ADDRESS_LENGTH])
        .execution_options(synchronize_session=False)
    )


def _name_faults(name: str) -> list[str]:
    if 1 <= len(name) <= MAX_TOKEN_NAME_LENGTH:
        return []
    return [f"The name must have 1 to {MAX_TOKEN_NAME_LENGTH} characters; it has {len(name)}."]


def _scope_faults(role: Role, scopes: tuple[str, ...]) -> list[str]:
    useful = scopes_for(role)
    wrong = [name for name in scopes if name not in useful]
    if not wrong:
        return []
    return [f"{', '.join(wrong)}: choose among {', '.join(useful)}."]


def _lifetime_faults(lifetime: timedelta | None) -> list[str]:
    if lifetime is None or timedelta() < lifetime <= timedelta(days=MAX_LIFETIME_DAYS):
        return []
    return [f"A token lasts up to {MAX_LIFETIME_DAYS} days, or for ever."]


def _refuse_faults(found: Mapping[str, list[str]]) -> None:
    errors = {field: faults for field, faults in found.items() if faults}
    if errors:
        message = " ".join(fault for faults in errors.values() for fault in faults)
        raise InvalidInputError(message, errors=errors)

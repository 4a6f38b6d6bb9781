"""Who is asking: passwords, browser sessions and API tokens.

Only hashes of secrets are stored; a secret is returned once, by the function that makes it.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError, UnauthenticatedError
from core.ids import hash_secret, new_secret
from tenants.models import APIToken, LoginSession, User
from tenants.passwords import hash_password, needs_rehash, verify_password
from tenants.scope import Scope
from tenants.visitors import Via, Visitor, visitor_of

SESSION_PREFIX = "vds"
API_TOKEN_PREFIX = "vdt"  # noqa: S105 - a prefix, not a secret
MAX_TOKEN_NAME_LENGTH = 100


def authenticate(session: Session, *, email: str, password: str) -> User:
    """Return the user with this email address and password.

    Raises:
        UnauthenticatedError: the pair is wrong, the user locked out or the tenant suspended. A
            wrong password and an unknown address get the same answer after the same work.
    """
    user = session.scalar(select(User).where(User.email == email.strip().lower()))
    known_hash = None if user is None else user.password_hash
    if not verify_password(known_hash, password) or user is None:
        raise UnauthenticatedError("The email address or the password is wrong. Try again.")
    if not user.is_active:
        raise UnauthenticatedError("This account is locked. Ask an admin of your tenant.")
    if visitor_of(user, via=Via.PASSWORD) is None:
        raise UnauthenticatedError(_why_not(user))
    if user.password_hash is not None and needs_rehash(user.password_hash):
        user.password_hash = hash_password(password)
    return user


def start_session(session: Session, user: User, *, now: datetime, lifetime: timedelta) -> str:
    """Sign a browser in; return the secret for its cookie. Drops the user's expired sessions."""
    session.execute(
        delete(LoginSession).where(LoginSession.user_id == user.id, LoginSession.expires_at <= now)
    )
    secret = new_secret(SESSION_PREFIX)
    session.add(
        LoginSession(
            user_id=user.id,
            secret_hash=hash_secret(secret),
            created_at=now,
            expires_at=now + lifetime,
        )
    )
    session.flush()
    return secret


def session_visitor(session: Session, secret: str, *, now: datetime) -> Visitor | None:
    """Return whose browser this is, or None when nobody (any more) is signed in with it."""
    found = session.scalar(
        select(LoginSession).where(
            LoginSession.secret_hash == hash_secret(secret), LoginSession.expires_at > now
        )
    )
    if found is None:
        return None
    return visitor_of(
        found.user, via=Via.SESSION, tenant_id=found.tenant_id, credential_id=found.id
    )


def end_session(session: Session, secret: str) -> None:
    """Sign a browser out; doing it twice is fine."""
    session.execute(delete(LoginSession).where(LoginSession.secret_hash == hash_secret(secret)))


def create_api_token(
    session: Session, scope: Scope, *, name: str, now: datetime
) -> tuple[APIToken, str]:
    """Make a token that acts as the scope's user; return it with its secret, shown only now."""
    name = name.strip()
    if not 1 <= len(name) <= MAX_TOKEN_NAME_LENGTH:
        fault = f"The name must have 1 to {MAX_TOKEN_NAME_LENGTH} characters; it has {len(name)}."
        raise InvalidInputError(fault, errors={"name": [fault]})
    secret = new_secret(API_TOKEN_PREFIX)
    token = APIToken(
        user_id=scope.user_id,
        tenant_id=scope.tenant_id,
        name=name,
        secret_hash=hash_secret(secret),
        created_at=now,
    )
    session.add(token)
    session.flush()
    return token, secret


def list_api_tokens(session: Session, scope: Scope) -> list[APIToken]:
    """Return the user's own tokens, newest first, the revoked ones too."""
    statement = select(APIToken).where(APIToken.user_id == scope.user_id)
    return list(session.scalars(statement.order_by(APIToken.id.desc())))


def revoke_api_token(session: Session, scope: Scope, token_id: str, *, now: datetime) -> APIToken:
    """End one of the user's own tokens; doing it twice keeps the first instant."""
    token = session.get(APIToken, token_id)
    if token is None or token.user_id != scope.user_id:
        raise NotFoundError.of("API token", token_id)
    token.revoked_at = token.revoked_at or now
    session.flush()
    return token


def token_visitor(session: Session, secret: str, *, now: datetime) -> Visitor | None:
    """Return who a program acts as, or None for an unknown, revoked or expired token."""
    found = session.scalar(select(APIToken).where(APIToken.secret_hash == hash_secret(secret)))
    if found is None or any(
        end is not None and end <= now for end in (found.revoked_at, found.expires_at)
    ):
        return None
    return visitor_of(
        found.user,
        via=Via.TOKEN,
        tenant_id=found.tenant_id,
        credential_id=found.id,
        token_scopes=tuple(found.scopes),
    )


def _why_not(user: User) -> str:
    if any(one.is_active for one in user.memberships):
        return "This tenant is suspended. Ask the operator of the portal."
    return "This account belongs to no tenant (any more). Ask an admin of your tenant."

"""Sign-up: an email address asks, the link that is sent there creates a tenant with its admin.

Nothing but the email shows whether the address has an account. A row exists for each request of the
last day, also of addresses with an account: their number is limited, so that nobody makes the
portal send any number of emails.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, NotFoundError, OverloadedError
from core.ids import hash_secret, new_id, new_secret
from marketplace.accounts import account_of
from marketplace.sign_ups.models import SignUp
from marketplace.states import AccountState
from tenants.checks import MAX_SLUG_LENGTH, name_errors, normalize_email, raise_if_invalid, slug_of
from tenants.models import Role, Tenant, User
from tenants.tenants import create_tenant, find_tenant
from tenants.users.members import create_user
from tenants.users.passwords import password_errors
from tenants.users.signin import find_user

SIGN_UP_PREFIX = "vdn"
LIFETIME = timedelta(hours=24)
# Above this, each network address has a limit of its own: `portal.auth.sign_in.count_sign_up`.
CROWDED_PER_HOUR = 200
MAX_PER_HOUR = 2000
GONE = "sign_up_gone"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCustomer:
    """What the holder of a link enters: the name of the tenant, and its first user."""

    organization: str
    name: str
    password: str


def checked_email(email: str) -> str:
    """Return an email address as it is stored.

    Raises:
        InvalidInputError: it is none.
    """
    normalized, errors = normalize_email(email)
    raise_if_invalid({"email": errors}, "The address can't be used")
    return normalized


def is_crowded(session: Session, *, now: datetime) -> bool:
    """Return whether so many asked within an hour that a few may be behind it."""
    return _last_hour(session, now=now) >= CROWDED_PER_HOUR


def start_sign_up(session: Session, email: str, *, now: datetime) -> str | None:
    """Note that an address asks to sign up; return the secret of its link.

    Returns None if the address has an account. Don't reveal that to the requester.

    Raises:
        OverloadedError: too many addresses asked within an hour.
    """
    if _last_hour(session, now=now) >= MAX_PER_HOUR:
        raise OverloadedError(
            "Too many people sign up at the moment. Try again in an hour.",
            retry_after_seconds=int(_HOUR.total_seconds()),
        )
    session.execute(delete(SignUp).where(SignUp.expires_at <= now))
    secret = new_secret(SIGN_UP_PREFIX)
    session.add(
        SignUp(
            email=email,
            secret_hash=hash_secret(secret),
            created_at=now,
            expires_at=now + LIFETIME,
            confirmed_at=None,
        )
    )
    session.flush()
    return None if find_user(session, email) is not None else secret


def find_sign_up(session: Session, secret: str, *, now: datetime) -> SignUp:
    """Return the sign-up of a valid link.

    Raises:
        NotFoundError: it is unknown, was used, or has expired.
    """
    sign_up = session.scalar(select(SignUp).where(SignUp.secret_hash == hash_secret(secret)))
    if sign_up is None or sign_up.confirmed_at is not None or sign_up.expires_at <= now:
        raise NotFoundError(
            "This link was already used or has expired. Sign up again to get a new one.", code=GONE
        )
    return sign_up


def confirm_sign_up(
    session: Session, secret: str, customer: NewCustomer, *, is_admitted: bool, now: datetime
) -> User:
    """Create the tenant and its admin by a link, which works once.

    Args:
        session: the session.
        secret: of the link.
        customer: what its holder entered.
        is_admitted: whether the tenant may rent at once, or the operator admits it.
        now: the current time.

    Raises:
        InvalidInputError: names every invalid field; the link stays valid.
        NotFoundError: the link was used or has expired.
        ConflictError: the address has an account by now.
    """
    sign_up = find_sign_up(session, secret, now=now)
    organization = customer.organization.strip()
    errors = {
        "organization": name_errors(organization),
        "name": name_errors(customer.name.strip()),
        "password": password_errors(customer.password),
    }
    raise_if_invalid(errors, "Nothing was created")
    unused = update(SignUp).where(SignUp.id == sign_up.id, SignUp.confirmed_at.is_(None))
    if not changed_one(session, unused.values(confirmed_at=now), synchronize_session=False):
        raise ConflictError("This link was used at the same moment. Sign in.", code=GONE)
    tenant = _new_tenant(session, organization, now=now)
    user = create_user(
        session,
        tenant_id=tenant.id,
        email=sign_up.email,
        name=customer.name,
        role=Role.ADMIN,
        password=customer.password,
        now=now,
    )
    account = account_of(session, tenant.id)
    account.customer_state = AccountState.ACTIVE if is_admitted else AccountState.REQUESTED
    account.public_name = account.legal_name = tenant.name
    account.billing_email, account.updated_at = sign_up.email, now
    session.add(account)
    session.flush()
    return user


def _last_hour(session: Session, *, now: datetime) -> int:
    count = select(func.count()).where(SignUp.created_at > now - _HOUR)
    return session.scalar(count) or 0


def _new_tenant(session: Session, name: str, *, now: datetime) -> Tenant:
    """Add a tenant; names may be equal, so a number or letters make its slug unique."""
    suffix = f"-{new_id()[-8:]}"
    slug = slug_of(name) or f"tenant{suffix}"
    if find_tenant(session, slug) is not None:
        slug = f"{slug[: MAX_SLUG_LENGTH - len(suffix)].rstrip('-')}{suffix}"
    return create_tenant(session, name=name, slug=slug, now=now)

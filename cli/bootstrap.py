"""First start of `vedette up`: create the tenants and users of a new database.

Default: one tenant with an admin, and an operator, with generated passwords that are shown once.
Demo: the tenants acme and globex with fixed users and one public password, on loopback only.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from cli.demo_slices import add_policies
from core.db import SessionFactory, transaction
from marketplace.accounts import admit
from marketplace.states import AccountState, Side
from tenants.enrollment import create_enrollment_token
from tenants.models import Role
from tenants.scope import Scope
from tenants.tenants import create_tenant, find_tenant
from tenants.users.members import create_user

DEMO_PASSWORD = "vedette-demo"  # noqa: S105 - public, loopback only
DEFAULT_TENANT = "main"
TOKEN_LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials to print for whoever started the server."""

    email: str
    password: str
    role: str


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user to create; `tenant` is a slug, None for an operator."""

    email: str
    name: str
    role: Role
    tenant: str | None


DEMO_TENANTS = {"acme": "Acme Robotics", "globex": "Globex Research"}
DEMO_USERS = (
    NewUser("alice@acme.example", "Alice Martin", Role.ADMIN, "acme"),
    NewUser("bob@acme.example", "Bob Okafor", Role.MEMBER, "acme"),
    NewUser("charlie@globex.example", "Charlie Lindqvist", Role.ADMIN, "globex"),
    NewUser("olivia@vedette.example", "Olivia Brandt", Role.OPERATOR, None),
)
CUSTOMER_TENANTS = {"initech": "Initech", "hooli": "Hooli Labs"}
CUSTOMER_USERS = (
    NewUser("dora@initech.example", "Dora Petrova", Role.ADMIN, "initech"),
    NewUser("erin@hooli.example", "Erin Walsh", Role.ADMIN, "hooli"),
    NewUser("frank@hooli.example", "Frank Sato", Role.BILLING, "hooli"),
)
DEFAULT_USERS = (
    NewUser("admin@vedette.example", "Admin", Role.ADMIN, DEFAULT_TENANT),
    NewUser("operator@vedette.example", "Operator", Role.OPERATOR, None),
)


def prepare_demo(
    sessions: SessionFactory, *, now: datetime, has_marketplace: bool = False
) -> list[Login]:
    """Create the tenants and users of the demo if they are missing; return their logins.

    With a marketplace, tenants without appliances rent from those with some.
    """
    parts: list[tuple[dict[str, str], tuple[NewUser, ...]]] = [(DEMO_TENANTS, DEMO_USERS)]
    if has_marketplace:
        parts.append((CUSTOMER_TENANTS, CUSTOMER_USERS))
    with transaction(sessions) as session:
        for tenants, users in parts:
            _create(session, tenants, [(user, DEMO_PASSWORD) for user in users], now=now)
        if has_marketplace:
            _admit(session, DEMO_TENANTS, Side.PROVIDER, now=now)
            _admit(session, CUSTOMER_TENANTS, Side.CUSTOMER, now=now)
    return [Login(user.email, DEMO_PASSWORD, _role(user)) for _, users in parts for user in users]


def prepare_default(sessions: SessionFactory, *, now: datetime) -> list[Login]:
    """Create a tenant, its admin and an operator; return their logins if they are new."""
    users = [(user, secrets.token_urlsafe(12)) for user in DEFAULT_USERS]
    with transaction(sessions) as session:
        is_new = _create(session, {DEFAULT_TENANT: "Main"}, users, now=now)
    return [Login(user.email, password, _role(user)) for user, password in users] if is_new else []


def create_token(sessions: SessionFactory, slug: str, *, uses: int, now: datetime) -> str:
    """Create an enrollment token of a tenant, as its admin can in the portal."""
    with transaction(sessions) as session:
        tenant = find_tenant(session, slug)
        if tenant is None:
            raise LookupError(f"no tenant {slug}")
        scope = Scope(user_id="", role=Role.ADMIN, tenant_id=tenant.id)
        _token, secret = create_enrollment_token(
            session, scope, uses=uses, lifetime=TOKEN_LIFETIME, now=now
        )
    return secret


def _create(
    session: Session, tenants: dict[str, str], users: list[tuple[NewUser, str]], *, now: datetime
) -> bool:
    if all(find_tenant(session, slug) for slug in tenants):
        return False
    created = {
        slug: create_tenant(session, name=name, slug=slug, now=now)
        for slug, name in tenants.items()
    }
    for slug, tenant in created.items():
        add_policies(session, tenant.id, slug, now=now)
    for user, password in users:
        create_user(
            session,
            tenant_id=created[user.tenant].id if user.tenant else None,
            email=user.email,
            name=user.name,
            role=user.role,
            password=password,
            now=now,
        )
    return True


def _admit(session: Session, slugs: Iterable[str], side: Side, *, now: datetime) -> None:
    operator = Scope(user_id="", role=Role.OPERATOR, tenant_id=None)
    for slug in slugs:
        tenant = find_tenant(session, slug)
        if tenant is not None:
            admit(session, operator, tenant.id, side, AccountState.ACTIVE, now=now)


def _role(user: NewUser) -> str:
    return f"{user.role.value} of {user.tenant}" if user.tenant else "operator"

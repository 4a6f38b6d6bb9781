"""The first start of `vedette up`: the tenants and users that a new database needs.

Plain: one tenant with an admin, and an operator, with passwords made here and shown once.
Demo: acme and globex with a fixed cast and one password, for the loopback address only.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from tenants.accounts import create_tenant, create_user, find_tenant
from tenants.fleet.appliances import create_enrolment_token
from tenants.models import Role, Tenant
from tenants.scope import Scope

DEMO_PASSWORD = "vedette-demo"  # noqa: S105 - public by purpose, loopback only
PLAIN_TENANT = "main"
TOKEN_LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Login:
    """A way in, to print for the person who started the server."""

    email: str
    password: str
    who: str


@dataclass(frozen=True, slots=True)
class Seat:
    """A user of the first start: address, name, role and the slug of the tenant, if any."""

    email: str
    name: str
    role: Role
    tenant: str | None


DEMO_TENANTS = {"acme": "Acme Robotics", "globex": "Globex Research"}
DEMO_CAST = (
    Seat("alice@acme.example", "Alice Martin", Role.ADMIN, "acme"),
    Seat("bob@acme.example", "Bob Okafor", Role.MEMBER, "acme"),
    Seat("charlie@globex.example", "Charlie Lindqvist", Role.ADMIN, "globex"),
    Seat("olivia@vedette.example", "Olivia Brandt", Role.OPERATOR, None),
)
PLAIN_CAST = (
    Seat("admin@vedette.example", "Admin", Role.ADMIN, PLAIN_TENANT),
    Seat("operator@vedette.example", "Operator", Role.OPERATOR, None),
)


def prepare_demo(sessions: SessionFactory, *, now: datetime) -> list[Login]:
    """Create the demo's tenants and cast where they are missing; return their logins."""
    with transaction(sessions) as session:
        _fill(session, DEMO_TENANTS, [(seat, DEMO_PASSWORD) for seat in DEMO_CAST], now=now)
    return [Login(seat.email, DEMO_PASSWORD, _who(seat)) for seat in DEMO_CAST]


def prepare_plain(sessions: SessionFactory, *, now: datetime) -> list[Login]:
    """Create a tenant, its admin and an operator; return logins only when they are new."""
    cast = [(seat, secrets.token_urlsafe(12)) for seat in PLAIN_CAST]
    with transaction(sessions) as session:
        is_new = _fill(session, {PLAIN_TENANT: "Main"}, cast, now=now)
    return [Login(seat.email, password, _who(seat)) for seat, password in cast] if is_new else []


def enrolment_secret(sessions: SessionFactory, slug: str, *, uses: int, now: datetime) -> str:
    """Make an enrolment token of a tenant, as its admin does in the portal."""
    with transaction(sessions) as session:
        tenant = find_tenant(session, slug)
        if tenant is None:
            raise LookupError(f"no tenant {slug}")
        scope = Scope(user_id="", role=Role.ADMIN, tenant_id=tenant.id)
        _token, secret = create_enrolment_token(
            session, scope, uses=uses, lifetime=TOKEN_LIFETIME, now=now
        )
    return secret


def _fill(
    session: Session, names: dict[str, str], cast: list[tuple[Seat, str]], *, now: datetime
) -> bool:
    if all(find_tenant(session, slug) for slug in names):
        return False
    tenants: dict[str, Tenant] = {
        slug: create_tenant(session, name=name, slug=slug, now=now) for slug, name in names.items()
    }
    for seat, password in cast:
        create_user(
            session,
            tenant_id=tenants[seat.tenant].id if seat.tenant else None,
            email=seat.email,
            name=seat.name,
            role=seat.role,
            password=password,
            now=now,
        )
    return True


def _who(seat: Seat) -> str:
    return f"{seat.role.value} of {seat.tenant}" if seat.tenant else "operator of the platform"

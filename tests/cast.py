"""The fixed cast of the tests, and the clock that they wind by hand.

acme (alice is its admin, bob a member), globex (charlie is its admin), and olivia, the operator.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session

from core.ids import hash_secret
from core.secretbox import SecretBox
from tenants.models import (
    Appliance,
    ApplianceState,
    Membership,
    Role,
    Tenant,
    TenantState,
    User,
)
from tenants.scope import Scope
from tenants.users.passwords import hash_password

PASSWORD = "correct horse battery"
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
# Secrets at rest, by a key of the tests.
BOX_KEY = "dmVkZXR0ZS10ZXN0cy1rZXktb2YtMzItYnl0ZXMhISE="
BOX = SecretBox([BOX_KEY])


class FrozenClock:
    """A clock that stands still until a test moves it; call it like `core.clock.utc_now`."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@dataclass(frozen=True, slots=True)
class Cast:
    """Two tenants and four users; all have the password `PASSWORD`."""

    acme: Tenant
    globex: Tenant
    alice: User
    bob: User
    charlie: User
    olivia: User


def make_cast(session: Session, *, now: datetime = NOON) -> Cast:
    """Add the cast to the database; their relationships are loaded and outlive the session."""
    acme = Tenant(slug="acme", name="Acme", state=TenantState.ACTIVE, created_at=now)
    globex = Tenant(slug="globex", name="Globex", state=TenantState.ACTIVE, created_at=now)
    cast = Cast(
        acme=acme,
        globex=globex,
        alice=_user("alice@acme.example", role=Role.ADMIN, tenant=acme, now=now),
        bob=_user("bob@acme.example", role=Role.MEMBER, tenant=acme, now=now),
        charlie=_user("charlie@globex.example", role=Role.ADMIN, tenant=globex, now=now),
        olivia=_user("olivia@vedette.example", role=Role.OPERATOR, tenant=None, now=now),
    )
    session.add_all([acme, globex, cast.alice, cast.bob, cast.charlie, cast.olivia])
    session.flush()
    return cast


def scope_of(user: User) -> Scope:
    """Return what this user may see."""
    return Scope.of(user)


def make_appliance(
    session: Session,
    tenant: Tenant,
    name: str,
    *,
    now: datetime = NOON,
    state: ApplianceState = ApplianceState.ONLINE,
    inventory: dict[str, Any] | None = None,
) -> Appliance:
    """Add an online appliance; the agent's secret of acme's gpu-01 is `vda_acme_gpu-01`."""
    appliance = Appliance(
        tenant=tenant,
        tenant_id=tenant.id,
        name=name,
        state=state,
        secret_hash=hash_secret(f"vda_{tenant.slug}_{name}"),
        inventory=inventory or {},
        enrolled_at=now,
        last_seen_at=now,
        clock_skew_seconds=None,
        drained_at=None,
        revoked_at=None,
    )
    session.add(appliance)
    session.flush()
    return appliance


@lru_cache
def _password_hash() -> str:
    # argon2id takes a tenth of a second: once for the whole run is enough.
    return hash_password(PASSWORD)


def _user(email: str, *, role: Role, tenant: Tenant | None, now: datetime) -> User:
    user = User(
        email=email,
        name=email.partition("@")[0].capitalize(),
        password_hash=_password_hash(),
        is_operator=role is Role.OPERATOR,
        created_at=now,
    )
    if tenant is not None:
        user.memberships.append(Membership(tenant=tenant, role=role, created_at=now))
    return user

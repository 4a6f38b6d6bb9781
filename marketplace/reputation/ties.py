"""Which tenants are tied to each other, from their accounts, users and ratings.

See `marketplace.reputation.ratings` for what follows from a tie.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from marketplace.models import Account
from marketplace.reputation.models import Rating
from marketplace.reputation.ratings import PRAISE_STARS, email_affiliation
from tenants.models import Membership, Role, User

Praises = dict[str, set[str]]


def read_praises(session: Session, *, since: datetime) -> Praises:
    """Return the providers that each tenant rated highly."""
    praises: Praises = defaultdict(set)
    statement = (
        select(Rating.tenant_id, Rating.provider_id)
        .where(Rating.stars >= PRAISE_STARS, Rating.updated_at >= since)
        .distinct()
    )
    for tenant_id, provider_id in session.execute(statement):
        praises[tenant_id].add(provider_id)
    return praises


def read_affiliations(session: Session, tenant_ids: Iterable[str]) -> dict[str, set[str]]:
    """Return what tenants share with others: email domains of admins and bills, and users."""
    affiliations: dict[str, set[str]] = {tenant_id: set() for tenant_id in tenant_ids}
    for part in chunked(sorted(affiliations)):
        accounts = select(Account.tenant_id, Account.billing_email).where(
            Account.tenant_id.in_(part)
        )
        for tenant_id, email in session.execute(accounts):
            affiliations[tenant_id].update(email_affiliation(email))
        members = (
            select(Membership.tenant_id, Membership.role, User.id, User.email)
            .join(User, User.id == Membership.user_id)
            .where(Membership.tenant_id.in_(part))
        )
        for tenant_id, role, user_id, email in session.execute(members):
            affiliations[tenant_id].add(f"user {user_id}")
            if role is Role.ADMIN:
                affiliations[tenant_id].update(email_affiliation(email))
    return affiliations

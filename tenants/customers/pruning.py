"""What is of no more use is deleted by the scheduler, and counted for the operator.

Each kind is kept for a while after it has expired, so that people still see what became of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from tenants.customers.series import COUNT_HOLDS
from tenants.customers.usage import KEPT_DAYS
from tenants.models import (
    APIToken,
    ApplianceCertificate,
    EnrolmentToken,
    IdempotencyKey,
    Invitation,
    LoginSession,
    PasswordReset,
    SeriesCount,
    TenantUsage,
    Throttle,
)
from tenants.people.throttling import is_forgotten

BATCH = 5000
_DAY = timedelta(days=1)
_MONTH = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of row that is pruned: what it is called, and which of its rows are of no use."""

    name: str
    model: Any
    is_useless: Callable[[datetime], ColumnElement[bool]]


KINDS = (
    Kind("expired sign-ins", LoginSession, lambda now: LoginSession.expires_at <= now),
    Kind(
        "API tokens that ended a month ago", APIToken,
        lambda now: or_(APIToken.expires_at <= now - _MONTH, APIToken.revoked_at <= now - _MONTH),
    ),
    Kind(
        "invitations that ended a month ago", Invitation,
        lambda now: or_(
            Invitation.expires_at <= now - _MONTH, Invitation.accepted_at <= now - _MONTH,
            Invitation.revoked_at <= now - _MONTH,
        ),
    ),
    Kind("expired password links", PasswordReset, lambda now: PasswordReset.expires_at <= now),
    Kind(
        "enrolment tokens that ended a month ago", EnrolmentToken,
        lambda now: or_(
            EnrolmentToken.expires_at <= now - _MONTH, EnrolmentToken.revoked_at <= now - _MONTH
        ),
    ),
    Kind(
        "certificates that ran out three months ago", ApplianceCertificate,
        lambda now: and_(
            ApplianceCertificate.not_after <= now - 3 * _MONTH,
            # The one that its appliance used last shows that a secret alone is not enough there.
            or_(
                ApplianceCertificate.first_used_at.is_(None),
                ApplianceCertificate.replaced_at.is_not(None),
                ApplianceCertificate.revoked_at.is_not(None),
            ),
        ),
    ),
    Kind(
        "idempotency keys of yesterday", IdempotencyKey,
        lambda now: IdempotencyKey.created_at <= now - _DAY,
    ),
    Kind("failed sign-ins that count no more", Throttle, is_forgotten),
    Kind(
        "days of usage of two years ago", TenantUsage,
        lambda now: TenantUsage.day <= (now - timedelta(days=KEPT_DAYS)).date(),
    ),
    Kind(
        "counts of series by servers that stopped", SeriesCount,
        lambda now: SeriesCount.counted_at <= now - 2 * COUNT_HOLDS,
    ),
)  # fmt: skip


def prune(session: Session, *, now: datetime) -> dict[str, int]:
    """Delete a batch of every kind; return how many went, by the kind's name."""
    return {kind.name: _prune(session, kind, now=now) for kind in KINDS}


def count_useless(session: Session, *, now: datetime) -> dict[str, int]:
    """Return how many rows of each kind the next pruning will delete."""
    return {
        kind.name: session.scalar(
            select(func.count()).select_from(kind.model).where(kind.is_useless(now))
        )
        or 0
        for kind in KINDS
    }


def _prune(session: Session, kind: Kind, *, now: datetime) -> int:
    # The audit log need not tell of what expired by itself, so nothing goes through objects.
    if kind.model in {TenantUsage, SeriesCount}:
        done: Any = session.execute(delete(kind.model).where(kind.is_useless(now)))
        return int(done.rowcount)
    found = session.scalars(select(kind.model.id).where(kind.is_useless(now)).limit(BATCH)).all()
    session.execute(
        delete(kind.model).where(kind.model.id.in_(found)),
        execution_options={"synchronize_session": False},
    )
    return len(found)

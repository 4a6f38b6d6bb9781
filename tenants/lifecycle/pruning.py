"""Pruning: the scheduler deletes rows some time after they expired."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from core.db import changed_rows
from tenants.lifecycle.usage import SERIES_COUNT_LIFETIME, USAGE_RETENTION_DAYS
from tenants.models import (
    APIToken,
    ApplianceCertificate,
    EnrollmentToken,
    IdempotencyKey,
    Invitation,
    LoginSession,
    PasswordReset,
    SeriesCount,
    TenantUsage,
    Throttle,
    UsedTicket,
)
from tenants.users.throttling import is_expired

# Deleting so many takes about 20 ms.
BATCH = 500
_DAY = timedelta(days=1)
_MONTH = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of row to prune, with the SQL condition of expired rows."""

    name: str
    model: Any
    is_prunable: Callable[[datetime], ColumnElement[bool]]


KINDS = (
    Kind("expired sign-in sessions", LoginSession, lambda now: LoginSession.expires_at <= now),
    Kind(
        "API tokens that ended a month ago",
        APIToken,
        lambda now: or_(APIToken.expires_at <= now - _MONTH, APIToken.revoked_at <= now - _MONTH),
    ),
    Kind(
        "invitations that ended a month ago",
        Invitation,
        lambda now: or_(
            Invitation.expires_at <= now - _MONTH,
            Invitation.accepted_at <= now - _MONTH,
            Invitation.revoked_at <= now - _MONTH,
        ),
    ),
    Kind("expired password links", PasswordReset, lambda now: PasswordReset.expires_at <= now),
    Kind(
        "enrollment tokens that ended a month ago",
        EnrollmentToken,
        lambda now: or_(
            EnrollmentToken.expires_at <= now - _MONTH, EnrollmentToken.revoked_at <= now - _MONTH
        ),
    ),
    Kind(
        "certificates expired for three months",
        ApplianceCertificate,
        lambda now: and_(
            ApplianceCertificate.not_after <= now - 3 * _MONTH,
            # Retain the one in use: it shows that the secret alone is not accepted any more.
            or_(
                ApplianceCertificate.first_used_at.is_(None),
                ApplianceCertificate.replaced_at.is_not(None),
                ApplianceCertificate.revoked_at.is_not(None),
            ),
        ),
    ),
    Kind(
        "expired idempotency keys",
        IdempotencyKey,
        lambda now: IdempotencyKey.created_at <= now - _DAY,
    ),
    Kind("used tickets of jobs' pages", UsedTicket, lambda now: UsedTicket.used_at <= now - _DAY),
    Kind("expired sign-in attempts", Throttle, is_expired),
    Kind(
        "usage older than two years",
        TenantUsage,
        lambda now: TenantUsage.day <= (now - timedelta(days=USAGE_RETENTION_DAYS)).date(),
    ),
    Kind(
        "series counts of stopped servers",
        SeriesCount,
        lambda now: SeriesCount.counted_at <= now - 2 * SERIES_COUNT_LIFETIME,
    ),
)


def prune(session: Session, *, now: datetime, kinds: Iterable[Kind] = KINDS) -> dict[str, int]:
    """Delete a batch of every kind; return the numbers by name."""
    return {kind.name: _prune(session, kind, now=now) for kind in kinds}


def count_prunable(session: Session, *, now: datetime) -> dict[str, int]:
    """Return how many rows of each kind can be pruned."""
    counts = {}
    for kind in KINDS:
        statement = select(func.count()).select_from(kind.model).where(kind.is_prunable(now))
        counts[kind.name] = session.scalar(statement) or 0
    return counts


def _prune(session: Session, kind: Kind, *, now: datetime) -> int:
    # Core statements: the audit log does not record pruning.
    if kind.model in {TenantUsage, SeriesCount}:
        return changed_rows(session, delete(kind.model).where(kind.is_prunable(now)))
    ids = session.scalars(select(kind.model.id).where(kind.is_prunable(now)).limit(BATCH)).all()
    if ids:
        session.execute(
            delete(kind.model).where(kind.model.id.in_(ids)),
            execution_options={"synchronize_session": False},
        )
    return len(ids)

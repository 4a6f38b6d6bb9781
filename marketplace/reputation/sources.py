"""All cases of a provider: of its days, breaches and ratings, and what other parts measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from marketplace.cases import Case, Dimension
from marketplace.reputation.days import DAY, REACHABLE
from marketplace.reputation.models import EvidenceDay, Rating
from marketplace.reputation.ratings import (
    JOB_LIMIT,
    Entry,
    GivenRating,
    bounded_weights,
    rating_cases,
    tied_groups,
)
from marketplace.reputation.ties import Praises, read_affiliations
from marketplace.service_levels.credits import describe
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.support.evidence import response_cases
from marketplace.verification.evidence import check_cases

HALF_LIVES = 6
"""After so many a case counts 1.6 %, and is left out."""
BREACH_WEIGHT = 5.0
"""Of a month below the promised availability, in days of an appliance."""
UNREACHABLE, PARTLY_REACHABLE = "unreachable", "partly_reachable"
MILLISECONDS_PER_HOUR = 3_600_000


# What other parts of the marketplace measure of a provider.
SOURCES = (response_cases, check_cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time whose cases count.

    Attributes:
        now: the current time.
        half_life: after which a case counts half.
    """

    now: datetime
    half_life: timedelta

    @property
    def since(self) -> datetime:
        """The time of the oldest cases that count."""
        return self.now - HALF_LIVES * self.half_life


def provider_cases(
    session: Session, provider_id: str, window: Window, *, praises: Praises
) -> list[Case]:
    """Return all cases of a provider, the latest first; those of the future are left out.

    Args:
        session: the session.
        provider_id: the provider.
        window: the time.
        praises: from `read_praises`.
    """
    attempts = _attempt_cases(session, provider_id, window)
    ratings = _ratings(session, provider_id, window)
    customers = {entry.customer_id for _, entry in attempts}
    customers |= {rating.customer_id for rating in ratings}
    groups = tied_groups(
        read_affiliations(session, {provider_id, *customers}),
        provider_id=provider_id,
        praises=praises,
    )
    cases = [
        *_availability_cases(session, provider_id, window),
        *_bounded(attempts, groups, provider_id, window),
        *rating_cases(
            ratings,
            groups,
            provider_id=provider_id,
            now=window.now,
            half_life=window.half_life,
        ),
    ]
    for source in SOURCES:
        cases += source(session, provider_id, since=window.since)
    present = [item for item in cases if window.since <= item.at <= window.now]
    return sorted(present, key=lambda item: item.at, reverse=True)


def _availability_cases(session: Session, provider_id: str, window: Window) -> list[Case]:
    """Return the cases of appliances' days, those of a day and kind as one, and of breaches."""
    kind = case(
        (EvidenceDay.good >= EvidenceDay.total, REACHABLE),
        (EvidenceDay.good <= 0, UNREACHABLE),
        else_=PARTLY_REACHABLE,
    )
    statement = (
        select(
            EvidenceDay.day_at,
            kind,
            func.sum(EvidenceDay.total),
            func.sum(EvidenceDay.good),
            func.count(),
            func.avg(EvidenceDay.measured),
            func.min(EvidenceDay.subject),
        )
        .where(
            EvidenceDay.provider_id == provider_id,
            EvidenceDay.dimension == Dimension.AVAILABILITY,
            EvidenceDay.day_at >= window.since - DAY,
        )
        .group_by(EvidenceDay.day_at, kind)
    )
    cases = []
    for day_at, name, total, good, count, measured, subject in session.execute(statement):
        appliances = "1 appliance" if count == 1 else f"{count} appliances"
        cases.append(
            Case(
                dimension=Dimension.AVAILABILITY,
                good=good / total if total else 0.0,
                weight=total,
                at=min(day_at + DAY, window.now),
                kind=name,
                subject=subject if count == 1 else "",
                text=f"{appliances} reachable {100 * measured:.4g} % of {day_at:%Y-%m-%d}",
            )
        )
    cases += [
        Case(
            dimension=Dimension.AVAILABILITY,
            good=0.0,
            weight=BREACH_WEIGHT,
            at=breach.detected_at,
            kind="availability_breach",
            subject=breach.contract_id,
            text=_capitalized(describe(breach)),
        )
        for breach in _breaches(session, provider_id, BreachKind.AVAILABILITY, window)
    ]
    return cases


def _attempt_cases(session: Session, provider_id: str, window: Window) -> list[tuple[Case, Entry]]:
    """Return the cases of attempts, not weighed yet, and whose they are."""
    columns = (EvidenceDay.day_at, EvidenceDay.subject, EvidenceDay.kind, EvidenceDay.total)
    statement = select(*columns, EvidenceDay.good).where(
        EvidenceDay.provider_id == provider_id,
        EvidenceDay.dimension == Dimension.JOBS,
        EvidenceDay.day_at >= window.since - DAY,
    )
    attempts = []
    for row in session.execute(statement):
        count = "1 attempt" if row.total == 1 else f"{row.total:.0f} attempts"
        job_case = Case(
            dimension=Dimension.JOBS,
            good=row.good / row.total,
            at=min(row.day_at + DAY, window.now),
            kind=row.kind,
            text=f"{count} of a customer on {row.day_at:%Y-%m-%d}",
        )
        entry = Entry(customer_id=row.subject, amount=row.total, at=job_case.at, good=job_case.good)
        attempts.append((job_case, entry))
    for breach in _breaches(session, provider_id, BreachKind.LATE_START, window):
        late = Case(
            dimension=Dimension.JOBS,
            good=0.0,
            at=breach.detected_at,
            kind="late_start",
            text=_capitalized(describe(breach)),
        )
        entry = Entry(customer_id=breach.customer_id, amount=1.0, at=late.at, good=0.0)
        attempts.append((late, entry))
    return attempts


def _bounded(
    attempts: Sequence[tuple[Case, Entry]],
    groups: Mapping[str, str],
    provider_id: str,
    window: Window,
) -> list[Case]:
    weights = bounded_weights(
        [entry for _, entry in attempts],
        groups,
        JOB_LIMIT,
        provider_id=provider_id,
        now=window.now,
        half_life=window.half_life,
    )
    return [
        replace(job_case, weight=weight)
        for (job_case, _), weight in zip(attempts, weights, strict=True)
    ]


def _ratings(session: Session, provider_id: str, window: Window) -> list[GivenRating]:
    statement = select(Rating).where(
        Rating.provider_id == provider_id, Rating.updated_at >= window.since
    )
    return [
        GivenRating(
            id=rating.id,
            customer_id=rating.tenant_id,
            stars=rating.stars,
            gpu_hours=rating.gpu_milliseconds / MILLISECONDS_PER_HOUR,
            at=rating.updated_at,
            text=rating.comment,
        )
        for rating in session.scalars(statement)
    ]


def _breaches(
    session: Session, provider_id: str, kind: BreachKind, window: Window
) -> Sequence[ServiceBreach]:
    statement = select(ServiceBreach).where(
        ServiceBreach.provider_id == provider_id,
        ServiceBreach.kind == kind,
        ServiceBreach.since >= window.since,
    )
    return session.scalars(statement).all()


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]

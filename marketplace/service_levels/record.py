"""The record of a provider: what it did in the last 90 days, as a figure and as its evidence.

Each figure starts from a few imagined good and bad cases, so that a new provider is uncertain, not
bad, and one lost job says little. The score is the lowest of the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, case, func, or_, select, update
from sqlalchemy.orm import Session

from core.clock import to_ns
from jobqueue.jobs.quarantine import START_FAULTS
from jobqueue.models import Attempt
from jobqueue.states import AttemptState, Reason
from marketplace.models import Account, Contract
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.states import AccountState
from tenants.models import Grant, OfferedAppliance
from timeseries.store import APPLIANCE_TAG, Aggregate, RangeQuery, Store

PERIOD = timedelta(days=90)
# Imagined cases, half of them good.
_PRIOR = 4.0
_FAULTS = (Reason.APPLIANCE_LOST, Reason.NODE_FAILED)
_ENDED = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.STOPPED, AttemptState.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a figure rests on.

    Attributes:
        name: stable, for programs.
        text: what was counted.
        good: the cases that speak for the provider.
        total: all cases.
    """

    name: str
    text: str
    good: float
    total: float

    @property
    def score(self) -> float:
        """The figure, 0 to 1; 0.5 without any case."""
        return (self.good + _PRIOR / 2) / (self.total + _PRIOR)


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a provider; `score` is between 0 and 1."""

    score: float
    evidence: Sequence[Evidence]


def provider_record(session: Session, store: Store, provider_id: str, *, now: datetime) -> Record:
    """Return the record of a provider.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    since = now - PERIOD
    ended, faults = _attempts(session, provider_id, since=since)
    contracts = session.scalar(
        select(func.count()).where(Contract.provider_id == provider_id, Contract.starts_at < now)
    )
    breaches = session.scalar(
        select(func.count(func.distinct(ServiceBreach.contract_id))).where(
            ServiceBreach.provider_id == provider_id,
            ServiceBreach.kind == BreachKind.AVAILABILITY,
            ServiceBreach.since >= since,
        )
    )
    late = session.scalar(
        select(func.count()).where(
            ServiceBreach.provider_id == provider_id,
            ServiceBreach.kind == BreachKind.LATE_START,
            ServiceBreach.since >= since,
        )
    )
    reachable, days = _reachable_days(session, store, provider_id, since=since, now=now)
    evidence = [
        Evidence(
            name="availability",
            text="Days of offered appliances, and those in which they were reachable.",
            good=reachable,
            total=days,
        ),
        Evidence(
            name="jobs",
            text="Attempts of customers that ended, and those that no fault of an appliance ended.",
            good=ended - faults,
            total=ended,
        ),
        Evidence(
            name="starts",
            text="Attempts of customers that ended, and those that started in the promised time.",
            good=max(ended - (late or 0), 0),
            total=ended,
        ),
        Evidence(
            name="promises",
            text="Contracts, and those without a month below the promised availability.",
            good=(contracts or 0) - (breaches or 0),
            total=contracts or 0,
        ),
    ]
    return Record(min(entry.score for entry in evidence), evidence)


def refresh_reputations(session: Session, store: Store, *, now: datetime) -> None:
    """Store the score of each provider in its account, and in what its contracts grant.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    admitted = select(Account.tenant_id).where(Account.provider_state == AccountState.ACTIVE)
    for provider_id in session.scalars(admitted).all():
        score = round(provider_record(session, store, provider_id, now=now).score, 4)
        for table, owner in ((Account, Account.tenant_id), (Grant, Grant.provider_id)):
            changed = update(table).where(owner == provider_id, table.reputation != score)
            session.execute(changed.values(reputation=score))


def _attempts(session: Session, provider_id: str, *, since: datetime) -> tuple[int, int]:
    """Return how many attempts of customers ended, and how many through the provider's fault."""
    is_fault = or_(
        Attempt.reason.in_(_FAULTS),
        and_(Attempt.reason.in_(START_FAULTS), Attempt.started_at.is_(None)),
    )
    statement = (
        select(func.count(), func.sum(case((is_fault, 1), else_=0)))
        .join(Contract, Contract.id == Attempt.contract_id)
        .where(
            Contract.provider_id == provider_id,
            Attempt.state.in_(_ENDED),
            Attempt.finished_at >= since,
        )
    )
    ended, faults = session.execute(statement).one()
    return int(ended), int(faults or 0)


def _reachable_days(
    session: Session, store: Store, provider_id: str, *, since: datetime, now: datetime
) -> tuple[float, float]:
    """Return the days in which offered appliances were reachable, and those that were measured."""
    offered = session.scalars(
        select(OfferedAppliance.appliance_id).where(OfferedAppliance.provider_id == provider_id)
    ).all()
    if not offered:
        return 0.0, 0.0
    day_ns = 86_400 * 10**9
    query = RangeQuery(
        measurement="appliance_status",
        fields=("reachable",),
        start_ns=to_ns(since) // day_ns * day_ns,
        end_ns=to_ns(now),
        aggregate=Aggregate.AVG,
        step_ns=day_ns,
        tenants=(provider_id,),
        filters={APPLIANCE_TAG: tuple(sorted(offered))},
        group_by=(APPLIANCE_TAG,),
    )
    daily = [value for series in store.query_range(query) for value in series.values]
    return sum(daily), float(len(daily))

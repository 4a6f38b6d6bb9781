"""Change standings: each change is an event with its cause, an audit entry and, mostly, an email.

All changes of a provider lock its account first, so that the policy, an operator and the provider
may act at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.money import ZERO, plain
from marketplace.consequences.decisions import Evidence, Position, Step, next_step
from marketplace.consequences.evidence import read_evidence
from marketplace.consequences.models import Appeal, Standing, StandingEvent
from marketplace.consequences.policies import current_policy
from marketplace.consequences.policy import (
    MARGIN,
    Policy,
    breach_limit,
    fee_points,
    listing_for,
    placement_factor,
)
from marketplace.consequences.states import (
    STANDING_TRANSITIONS,
    AppealState,
    EventKind,
    StandingState,
)
from marketplace.emails import email_admins
from marketplace.invoices.models import ProviderFee
from marketplace.models import Account
from marketplace.months import month_of, next_month
from marketplace.states import AccountState, Listing
from tenants.auditing.recording import record
from tenants.models import Tenant

JUDGED = (AccountState.ACTIVE, AccountState.SUSPENDED)
_EFFECTS = (EventKind.LISTING, EventKind.PLACEMENT, EventKind.FEE)
KEPT_FOR = timedelta(days=400)
_MAX_LISTED = 20
_MAX_REASON = 500
_SUBJECTS: Mapping[EventKind, str] = {
    EventKind.NOTICED: "has notice of breaches",
    EventKind.MENDED: "has mended",
    EventKind.SUSPENDED: "is suspended as a provider",
    EventKind.PROBATION: "is back as a provider, on probation",
    EventKind.REINSTATED: "is a provider without limits again",
    EventKind.APPEAL_ACCEPTED: "won its appeal",
    EventKind.APPEAL_REJECTED: "lost its appeal",
    EventKind.LISTING: "is listed differently",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is recorded of a change.

    Attributes:
        kind: what changed.
        cause: why, in sentences.
        actor: the email address of the user that made it; "" for the policy.
        is_by_operator: whether that is an operator.
        details: figures by name.
    """

    kind: EventKind
    cause: str
    actor: str = ""
    is_by_operator: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider that nobody else changes meanwhile, and the policy that applies to it."""

    account: Account
    standing: Standing
    policy: Policy
    policy_number: int


def providers_to_judge(session: Session) -> list[str]:
    """Return the tenants that are admitted as providers, or suspended."""
    statement = select(Account.tenant_id).where(Account.provider_state.in_(JUDGED))
    return sorted(session.scalars(statement))


def forget_events(session: Session, *, now: datetime) -> None:
    """Delete old events of effects; those of the state, and their causes, stay."""
    session.execute(
        delete(StandingEvent).where(
            StandingEvent.at < now - KEPT_FOR, StandingEvent.kind.in_(_EFFECTS)
        )
    )


def standing_of(session: Session, provider_id: str, *, now: datetime) -> Standing:
    """Return the standing of a provider; if it has none, a `good` one that is not stored."""
    return session.get(Standing, provider_id) or Standing(
        tenant_id=provider_id,
        state=StandingState.GOOD,
        cause="",
        since=now,
        is_by_operator=False,
        fee_points=ZERO,
        score=0.5,
        breaches=0,
        breach_limit=0,
        failing_appliances=0,
    )


def lock(session: Session, provider_id: str, *, now: datetime) -> Provider | None:
    """Return a provider, locked until the end of the transaction; None if it is none."""
    begin_writing(session)
    statement = select(Account).where(Account.tenant_id == provider_id).with_for_update()
    account = session.scalar(statement.execution_options(populate_existing=True))
    if account is None or account.provider_state not in JUDGED:
        return None
    own = select(Standing).where(Standing.tenant_id == provider_id).with_for_update()
    standing = session.scalar(own.execution_options(populate_existing=True))
    if standing is None:
        standing = standing_of(session, provider_id, now=now)
        session.add(standing)
    number, policy = current_policy(session)
    return Provider(account=account, standing=standing, policy=policy, policy_number=number)


def position_of(standing: Standing) -> Position:
    """Return where a provider stands, for decisions."""
    return Position(
        state=standing.state,
        since=standing.since,
        mend_until=standing.mend_until,
        returns_at=standing.returns_at,
        probation_until=standing.probation_until,
        is_by_operator=standing.is_by_operator,
    )


def evaluate(session: Session, provider_id: str, *, now: datetime, mail_url: str = "") -> bool:
    """Take the step that follows for a provider now; return whether its state changed."""
    provider = lock(session, provider_id, now=now)
    if provider is None:
        return False
    account, standing, policy = provider.account, provider.standing, provider.policy
    former = standing.state
    _follow_operator(session, provider, now=now)
    evidence = read_evidence(session, account, policy, counted_from=standing.counted_from, now=now)
    step = next_step(position_of(standing), evidence, policy, now=now)
    if step is not None:
        change = _change_of(step, standing, evidence)
        take(session, provider, step, change, now=now, mail_url=mail_url)
        if step.forgets:
            since = standing.counted_from
            evidence = read_evidence(session, account, policy, counted_from=since, now=now)
    on_probation = position_of(standing).is_on_probation(now)
    standing.score, standing.breaches = evidence.score, len(evidence.breaches)
    standing.breach_limit = breach_limit(policy, evidence.size, is_on_probation=on_probation)
    standing.failing_appliances = len(evidence.failing)
    standing.evaluated_at = now
    for change in _effects(session, provider, now=now):
        add_event(session, provider, change, now=now, mail_url=mail_url)
    session.flush()
    return standing.state is not former


def listing_after(policy: Policy, score: float, now: Listing, *, on_probation: bool) -> Listing:
    """Return how offers are listed: during probation at best last."""
    listing = listing_for(policy, score, now)
    return Listing.LAST if on_probation and listing is Listing.NORMAL else listing


def factor_after(policy: Policy, score: float, now: float) -> float:
    """Return what placement divides prices by; small moves of the score don't change it."""
    factor = placement_factor(policy, score)
    is_usual = factor == 1 != now
    return factor if is_usual or abs(factor - now) >= MARGIN else now


def points_after(policy: Policy, score: float, now: Decimal, *, is_limited: bool) -> Decimal:
    """Return the points of the next month; small moves of the score don't change them.

    Args:
        policy: the policy.
        score: of the provider.
        now: its present points.
        is_limited: whether it gets no discount.
    """
    near = {fee_points(policy, score + offset) for offset in (-MARGIN, MARGIN)}
    points = now if now in near else fee_points(policy, score)
    return max(points, ZERO) if is_limited else points


def take(
    session: Session,
    provider: Provider,
    step: Step,
    change: Change,
    *,
    now: datetime,
    mail_url: str = "",
) -> StandingEvent:
    """Change the state of a standing; suspend or admit the account with it."""
    account, standing = provider.account, provider.standing
    if step.state not in STANDING_TRANSITIONS[standing.state]:
        raise AssertionError(f"no transition from {standing.state} to {step.state}")
    former = standing.state
    standing.state, standing.cause, standing.since = step.state, step.cause, now
    if step.forgets:
        standing.counted_from, standing.breaches = now, 0
    standing.mend_until = step.until if step.state is StandingState.NOTICED else None
    standing.returns_at = step.until if step.state is StandingState.SUSPENDED else None
    standing.is_by_operator = change.is_by_operator and step.state is StandingState.SUSPENDED
    if step.state is not StandingState.NOTICED:
        is_probation = step.state is StandingState.PROBATION
        standing.probation_until = step.until if is_probation else None
    event = add_event(session, provider, change, now=now, mail_url=mail_url)
    if step.state is StandingState.SUSPENDED:
        standing.suspension_id = event.id
        account.provider_state, account.updated_at = AccountState.SUSPENDED, now
    elif former is StandingState.SUSPENDED:
        session.execute(
            update(Appeal)
            .where(Appeal.suspension_id == standing.suspension_id, Appeal.state == AppealState.OPEN)
            .values(state=AppealState.CLOSED, decided_at=now)
        )
        standing.suspension_id = None
        account.provider_state, account.updated_at = AccountState.ACTIVE, now
    session.flush()
    return event


def add_event(
    session: Session, provider: Provider, change: Change, *, now: datetime, mail_url: str = ""
) -> StandingEvent:
    """Record a change as an event and in the audit logs, and email the provider's admins."""
    account = provider.account
    event = StandingEvent(
        tenant_id=account.tenant_id,
        at=now,
        kind=change.kind,
        cause=change.cause,
        details=dict(change.details),
        actor=change.actor,
        policy_number=provider.policy_number,
    )
    session.add(event)
    session.flush()
    # The platform's log has what operators did, and what the provider said.
    for chain in (account.tenant_id, *([None] if change.actor else [])):
        record(
            session,
            action=f"standing.{change.kind.value}",
            target_id=account.tenant_id,
            target_name=account.public_name,
            tenant_id=chain,
            after={name: value for name, value in change.details.items() if name != "breaches"},
            reason=change.cause[:_MAX_REASON],
            is_foreign=change.is_by_operator and chain is not None,
            now=now,
        )
    subject = _SUBJECTS.get(change.kind)
    if subject and mail_url:
        name = session.get_one(Tenant, account.tenant_id).name
        email_admins(
            session,
            account.tenant_id,
            subject=f"{name} {subject}",
            text=f"{name} {subject} on the marketplace. {change.cause}",
            link=f"{mail_url}/provider/standing",
            now=now,
        )
    return event


def _follow_operator(session: Session, provider: Provider, *, now: datetime) -> None:
    """Take over what an operator decided on the account itself, which has sent its email."""
    account, standing = provider.account, provider.standing
    is_suspended = standing.state is StandingState.SUSPENDED
    if account.provider_state is AccountState.SUSPENDED and not is_suspended:
        cause = "An operator suspended the provider."
        step = Step(state=StandingState.SUSPENDED, cause=cause)
        change = Change(kind=EventKind.SUSPENDED, cause=cause, is_by_operator=True)
    elif account.provider_state is AccountState.ACTIVE and is_suspended:
        cause = "An operator admitted the provider again."
        step = Step(state=StandingState.GOOD, cause=cause, forgets=True)
        change = Change(kind=EventKind.REINSTATED, cause=cause, is_by_operator=True)
    else:
        return
    take(session, provider, step, change, now=now)


def _change_of(step: Step, standing: Standing, evidence: Evidence) -> Change:
    kinds = {
        StandingState.NOTICED: EventKind.NOTICED,
        StandingState.SUSPENDED: EventKind.SUSPENDED,
        StandingState.PROBATION: EventKind.PROBATION,
        StandingState.GOOD: EventKind.REINSTATED,
    }
    kind = EventKind.MENDED if standing.state is StandingState.NOTICED else kinds[step.state]
    kind = EventKind.SUSPENDED if step.state is StandingState.SUSPENDED else kind
    listed = [
        {
            "at": breach.at.isoformat(),
            "kind": breach.kind,
            "subject": breach.subject,
            "text": breach.text,
        }
        for breach in evidence.breaches[-_MAX_LISTED:]
    ]
    details = {
        "state": step.state.value,
        "score": round(evidence.score, 4),
        "counted": len(evidence.breaches),
        "breaches": listed,
    }
    if step.until is not None:
        details["until"] = step.until.isoformat()
    return Change(kind=kind, cause=step.cause, details=details)


def _effects(session: Session, provider: Provider, *, now: datetime) -> Iterator[Change]:
    """Write what follows for placement, catalogue and fee; yield what changed."""
    account, standing, policy = provider.account, provider.standing, provider.policy
    on_probation = position_of(standing).is_on_probation(now)
    account.max_contract_gpus = policy.probation_max_gpus if on_probation else 0
    listing = listing_after(policy, standing.score, account.listing, on_probation=on_probation)
    if listing is not account.listing:
        yield _listing_change(account.listing, listing, standing, on_probation=on_probation)
        account.listing = listing
    factor = factor_after(policy, standing.score, account.placement_factor)
    if factor != account.placement_factor:
        yield Change(
            kind=EventKind.PLACEMENT,
            cause=f"The score is {standing.score:.2f}: placement compares the prices divided by "
            f"{factor:.2f}.",
            details={"before": account.placement_factor, "factor": factor},
        )
        account.placement_factor = factor
    # No discount after a suspension, until the probation is over.
    is_limited = standing.state is StandingState.SUSPENDED or standing.probation_until is not None
    points = points_after(policy, standing.score, standing.fee_points, is_limited=is_limited)
    month_at = next_month(month_of(now))
    if points != standing.fee_points:
        yield Change(
            kind=EventKind.FEE,
            cause=f"The score is {standing.score:.2f}: {plain(points)} percentage points are added "
            f"to the fee from {month_at:%B %Y} on.",
            details={"before": plain(standing.fee_points), "points": plain(points)},
        )
        standing.fee_points = points
    _write_fee(session, account.tenant_id, month_at, points)


def _listing_change(
    before: Listing, listing: Listing, standing: Standing, *, on_probation: bool
) -> Change:
    how = {
        Listing.NORMAL: "listed like others",
        Listing.LAST: "listed last",
        Listing.HIDDEN: "not listed, and take no new contracts",
    }[listing]
    is_limit = on_probation and listing is Listing.LAST
    why = "During probation" if is_limit else f"The score is {standing.score:.2f}:"
    return Change(
        kind=EventKind.LISTING,
        cause=f"{why} the offers are {how}.",
        details={"before": before.value, "listing": listing.value},
    )


def _write_fee(session: Session, provider_id: str, month_at: datetime, points: Decimal) -> None:
    fee = session.get(ProviderFee, (provider_id, month_at))
    if fee is not None:
        fee.points = points
    elif points:
        session.add(ProviderFee(provider_id=provider_id, month_at=month_at, points=points))

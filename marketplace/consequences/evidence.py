"""What counts for or against a provider: its score, breaches of promises, and failed checks."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import chunked
from marketplace.cases import Case
from marketplace.consequences.decisions import Breach, Evidence
from marketplace.consequences.policy import Policy
from marketplace.models import Account, Contract
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.states import USABLE
from marketplace.verification.evidence import check_cases
from tenants.fleet.states import in_service
from tenants.models import Appliance
from tenants.models.rentals import OfferedAppliance

# A case below it is a failed check.
_PASSED = 0.5
MAX_BREACHES = 1000


def read_evidence(
    session: Session,
    account: Account,
    policy: Policy,
    *,
    counted_from: datetime | None,
    now: datetime,
) -> Evidence:
    """Return what counts for or against a provider now.

    Args:
        session: the session.
        account: of the provider.
        policy: its window counts.
        counted_from: breaches before it don't count; None for all of the window.
        now: the time.
    """
    since = max(filter(None, (now - timedelta(days=policy.window_days), counted_from)))
    # An appliance whose last check failed is failing, also if that was before the window.
    longest = timedelta(days=max(policy.window_days, 90))
    checks = sorted(
        check_cases(session, account.tenant_id, since=now - longest), key=lambda case: case.at
    )
    last = {case.subject: case for case in checks}
    failed = [case for case in checks if case.good < _PASSED and case.at >= since]
    promises = _promises(session, account.tenant_id, since=since, now=now)
    breaches = sorted([*promises, *_daily(failed)], key=lambda breach: breach.at)
    return Evidence(
        score=account.reputation,
        breaches=breaches[-MAX_BREACHES:],
        failing=_in_service(
            session, [ident for ident, case in last.items() if case.good < _PASSED]
        ),
        size=_size(session, account.tenant_id),
    )


def _promises(
    session: Session, provider_id: str, *, since: datetime, now: datetime
) -> Iterable[Breach]:
    """Yield what contracts were not kept; of late starts and answers, a customer's day counts once.

    So nobody brings about notice in a day, by several contracts and an image that is slow to pull.
    The availability of a month is breached when that becomes certain, the others when they
    happened.
    """
    statement = (
        select(ServiceBreach)
        .where(
            ServiceBreach.provider_id == provider_id,
            ServiceBreach.detected_at >= since,
            ServiceBreach.detected_at <= now,
        )
        .order_by(ServiceBreach.detected_at)
        .limit(10 * MAX_BREACHES)
    )
    counted = set()
    for row in session.scalars(statement):
        is_month = row.kind is BreachKind.AVAILABILITY
        at = row.detected_at if is_month else row.since
        key = (
            (row.contract_id, row.kind, row.subject)
            if is_month
            else (row.customer_id, row.kind, f"{at:%Y-%m-%d}")
        )
        if at < since or key in counted:
            continue
        counted.add(key)
        yield Breach(
            at=at, kind=row.kind.value, subject=row.contract_id, text=_promise_text(row, is_month)
        )


def _promise_text(row: ServiceBreach, is_month: bool) -> str:  # noqa: FBT001 - private
    if is_month:
        return (
            f"Availability in {row.subject}: {row.measured:.2f} % of {row.promised:g} % promised."
        )
    what = row.kind.value.replace("_", " ").capitalize()
    return f"{what}: {row.measured:.0f} s of {row.promised:.0f} s promised."


def _daily(failed: Iterable[Case]) -> Iterable[Breach]:
    """Yield failed checks; those of an appliance and a day count once."""
    by_day = {(case.subject, f"{case.at:%Y-%m-%d}"): case for case in failed}
    for case in by_day.values():
        yield Breach(at=case.at, kind="check_failed", subject=case.subject, text=case.text)


def _in_service(session: Session, idents: Sequence[str]) -> frozenset[str]:
    """Return those of some appliances that are not retired: to retire one mends it, too."""
    return frozenset(
        ident
        for part in chunked(idents)
        for ident in session.scalars(
            select(Appliance.id).where(Appliance.id.in_(part), in_service())
        )
    )


def _size(session: Session, provider_id: str) -> int:
    contracts = select(func.count()).where(
        Contract.provider_id == provider_id, Contract.state.in_(USABLE)
    )
    appliances = select(func.count()).where(OfferedAppliance.provider_id == provider_id)
    return (session.scalar(contracts) or 0) + (session.scalar(appliances) or 0)

"""Service levels: what was promised, what was measured, and the credit for the difference."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory, transaction
from jobqueue.models import Attempt
from jobqueue.states import AttemptState, Reason
from jobqueue.usage.models import UsageEntry
from marketplace.charges.models import BillingLine, LineKind
from marketplace.models import Account, Contract, ContractVersion
from marketplace.service_levels.credits import credit_percent, describe, settle
from marketplace.service_levels.detection import detect
from marketplace.service_levels.models import BreachKind, ServiceBreach
from marketplace.service_levels.service import breaches_of, month_so_far
from marketplace.states import AccountState, ContractState, Side, VersionState
from marketplace.terms import Credit, ServiceLevel, Terms, terms_hash
from tenants.models import Appliance, Grant, OfferedAppliance, Tenant
from tests.cast import NOON, Cast, make_appliance
from tests.unit.jobqueue.builders import submit
from tests.unit.marketplace.ledger import accrue_all
from tests.unit.marketplace.months import record_until
from timeseries.points import Batch, Point
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Store

MARCH = datetime(2026, 3, 1, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEVEL = ServiceLevel(
    availability_percent=99.5,
    start_within_seconds=300,
    credits=(
        Credit(below_percent=99.5, credit_percent=Decimal(10)),
        Credit(below_percent=95.0, credit_percent=Decimal(25)),
    ),
    late_start_credit_percent=Decimal(50),
)


def rent(session: Session, cast: Cast, level: ServiceLevel = LEVEL) -> tuple[str, str]:
    """Let globex rent acme's `gpu-01` from March on; return the contract and the appliance."""
    appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
    terms = Terms(currency="EUR", price=Decimal(2), service_level=level)
    contract = Contract(
        offer_id="offer",
        offer_name="H100",
        provider_id=cast.acme.id,
        provider_name="Acme",
        customer_id=cast.globex.id,
        customer_name="Globex",
        state=ContractState.ACTIVE,
        created_at=MARCH,
        starts_at=MARCH,
    )
    version = ContractVersion(
        number=1,
        state=VersionState.ACCEPTED,
        terms=msgspec.to_builtins(terms),
        terms_hash=terms_hash(terms),
        proposed_side=Side.PROVIDER,
        proposed_by="alice@acme.example",
        proposed_at=MARCH,
        accepted_by="charlie@globex.example",
        accepted_at=MARCH,
        applies_from=MARCH,
    )
    contract.versions.append(version)
    session.add(contract)
    session.flush()
    account = Account(tenant_id=cast.acme.id, provider_state=AccountState.ACTIVE, updated_at=MARCH)
    session.add(account)
    session.add(
        OfferedAppliance(
            appliance_id=appliance.id,
            provider_id=cast.acme.id,
            offer_id="offer",
            price=Decimal(2),
            refreshed_at=MARCH,
        )
    )
    session.add(
        Grant(
            contract_id=contract.id,
            tenant_id=cast.globex.id,
            provider_id=cast.acme.id,
            offer_id="offer",
            price=Decimal(2),
            refreshed_at=MARCH,
        )
    )
    return contract.id, appliance.id


def use(session: Session, cast: Cast, contract_id: str, appliance_id: str, at: datetime) -> None:
    """Let the contract's jobs use the appliance in an hour for 100."""
    identity = {"tenant_id": cast.globex.id, "attempt_id": f"attempt-{at:%d-%H}"}
    facts = {"job_id": "job", "appliance_id": appliance_id, "contract_id": contract_id}
    figures = ("allocated_milliseconds", "used_milliseconds", "idle_milliseconds", "energy_joules")
    session.add(
        UsageEntry(
            hour_at=at,
            job_name="train",
            gpu_model="H100",
            revision=0,
            recorded_at=at,
            **identity,
            **facts,
            **dict.fromkeys(figures, 0),
        )
    )
    session.add(
        BillingLine(
            provider_id=cast.acme.id,
            kind=LineKind.USAGE,
            at=at,
            recorded_at=at,
            amount=Decimal(100),
            **identity,
            **facts,
        )
    )


def measured(store: Store, cast: Cast, appliance_id: str, hours: dict[datetime, float]) -> None:
    """Write what the portal saw of the appliance in hours: 1 is reachable."""
    points = [
        Point("appliance_status", {}, {"reachable": value}, to_ns(at + HOUR / 2))
        for at, value in hours.items()
    ]
    identity = {TENANT_TAG: cast.acme.id, APPLIANCE_TAG: appliance_id}
    store.submit(Batch.of(points), identity=identity).result()


def contract_of(session: Session) -> Contract:
    return session.scalars(select(Contract)).one()


def test_an_outage_that_a_month_does_not_allow_is_a_breach_at_once_and_is_credited_later(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        use(session, cast, contract_id, appliance_id, MARCH + 10 * HOUR)
    # 734 hours from the first use on may have 3.67 hours without the appliance.
    start = MARCH + 10 * HOUR
    measured(store, cast, appliance_id, {start + n * HOUR: 1.0 for n in range(10)})
    measured(store, cast, appliance_id, {start + n * HOUR: 0.0 for n in range(10, 13)})
    assert detect(sessions, store, now=start + 13 * HOUR) == 0
    with sessions() as session:
        so_far = month_so_far(sessions, store, contract_of(session), now=start + 13 * HOUR)
    assert so_far.down_hours == pytest.approx(3)
    assert so_far.allowed_down_hours == pytest.approx(3.67)

    measured(store, cast, appliance_id, {start + 13 * HOUR: 0.0})
    assert detect(sessions, store, now=start + 14 * HOUR) == 1
    assert detect(sessions, store, now=start + 14 * HOUR) == 0
    assert settle(sessions, now=APRIL) == 0

    up = {start + n * HOUR: 1.0 for n in range(14, 734)}
    measured(store, cast, appliance_id, up)
    assert detect(sessions, store, now=APRIL + HOUR) == 0
    with transaction(sessions) as session:
        record_until(session, APRIL)
    # The last hour of the ledger is not charged yet.
    assert settle(sessions, now=APRIL + timedelta(days=2)) == 0
    accrue_all(sessions)
    assert settle(sessions, now=APRIL + timedelta(days=2)) == 1
    assert settle(sessions, now=APRIL + timedelta(days=3)) == 0
    with sessions() as session:
        (breach,) = breaches_of(session, contract_of(session), since=MARCH, until=APRIL)
        assert breach.measured == pytest.approx(100 * 730 / 734, abs=0.01)
        assert breach.evidence["down_hours"] == {appliance_id: 4.0}
        assert breach.credit == Decimal(10)
        assert describe(breach) == "available 99.455 % of 2026-03, promised 99.5 %"
        credit = session.scalars(
            select(BillingLine).where(BillingLine.kind == LineKind.SERVICE_CREDIT)
        ).one()
    assert (credit.amount, credit.tenant_id) == (Decimal(-10), cast.globex.id)
    assert MARCH <= credit.at < APRIL


def test_appliances_that_are_rented_later_may_make_up_for_a_breach(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        use(session, cast, contract_id, appliance_id, MARCH)
    measured(store, cast, appliance_id, {MARCH + n * HOUR: float(n >= 4) for n in range(744)})
    assert detect(sessions, store, now=MARCH + 5 * HOUR) == 1
    with transaction(sessions) as session:
        other = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-02")
        use(session, cast, contract_id, other.id, MARCH + HOUR)
    measured(store, cast, other.id, {MARCH + n * HOUR: 1.0 for n in range(1, 744)})
    assert detect(sessions, store, now=APRIL) == 0
    with sessions() as session:
        assert breaches_of(session, contract_of(session)) == []


def test_a_breach_is_found_after_the_portal_was_down_at_the_end_of_its_month(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        use(session, cast, contract_id, appliance_id, APRIL - 10 * HOUR)
    measured(store, cast, appliance_id, {APRIL - n * HOUR: 0.0 for n in range(1, 11)})
    assert detect(sessions, store, now=APRIL + timedelta(days=3)) == 1


def test_a_kept_promise_is_no_breach_and_time_without_samples_counts_for_nobody(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        use(session, cast, contract_id, appliance_id, MARCH)
    # The portal was down for all but two days.
    measured(store, cast, appliance_id, {MARCH + n * HOUR: 1.0 for n in range(48)})
    assert detect(sessions, store, now=APRIL + HOUR) == 0


def test_a_provider_that_retires_a_rented_appliance_breaches_its_promise(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        use(session, cast, contract_id, appliance_id, MARCH)
        session.get_one(Appliance, appliance_id).retired_at = MARCH + 24 * HOUR
    measured(store, cast, appliance_id, {MARCH + n * HOUR: 1.0 for n in range(24)})
    assert detect(sessions, store, now=MARCH + 26 * HOUR) == 0
    assert detect(sessions, store, now=MARCH + 28 * HOUR) == 1


def test_a_late_start_is_a_breach_whose_credit_is_a_share_of_the_attempt(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        job = submit(session, cast.charlie, name="train")
        outcomes: list[dict[str, Any]] = [
            {"state": AttemptState.RUNNING, "started_at": NOON + timedelta(minutes=4)},
            {"state": AttemptState.STARTING},
            {"state": AttemptState.FAILED, "reason": Reason.IMAGE_NOT_FOUND},
        ]
        attempts = [
            Attempt(
                job_id=job.id,
                tenant_id=cast.globex.id,
                appliance_id=appliance_id,
                contract_id=contract_id,
                number=number,
                bound_at=NOON,
                assigned_at=NOON,
                **outcome,
            )
            for number, outcome in enumerate(outcomes)
        ]
        session.add_all(attempts)
        session.flush()
        late_id = attempts[1].id
        session.add(
            BillingLine(
                tenant_id=cast.globex.id,
                provider_id=cast.acme.id,
                contract_id=contract_id,
                attempt_id=late_id,
                kind=LineKind.USAGE,
                at=NOON,
                recorded_at=NOON,
                amount=Decimal("7.33333333"),
            )
        )
    assert detect(sessions, store, now=NOON + timedelta(minutes=5)) == 0
    assert detect(sessions, store, now=NOON + timedelta(minutes=6)) == 1
    with transaction(sessions) as session:
        late = session.get_one(Attempt, late_id)
        late.state, late.started_at = AttemptState.SUCCEEDED, NOON + timedelta(minutes=10)
        late.finished_at = NOON + HOUR
    assert detect(sessions, store, now=NOON + 2 * HOUR) == 0
    assert settle(sessions, now=NOON + 2 * HOUR) == 0
    assert settle(sessions, now=NOON + timedelta(days=2)) == 0
    with transaction(sessions) as session:
        record_until(session, NOON + HOUR)
    accrue_all(sessions)
    assert settle(sessions, now=NOON + timedelta(days=2)) == 1
    with sessions() as session:
        breach = session.scalars(select(ServiceBreach)).one()
    assert (breach.kind, breach.subject) == (BreachKind.LATE_START, late_id)
    assert (breach.measured, breach.promised) == (600.0, 300.0)
    # Half of it; what comes to half of the last digit goes to the even one.
    assert breach.credit == Decimal("3.66666666")
    assert describe(breach) == "a job started after 10m, promised within 5m"


@pytest.mark.parametrize(
    ("pulled_until", "started_after", "seconds"),
    [(20, None, 0), (20, 24, 0), (20, 26, 360), (None, None, 0), (None, 40, 0)],
)
def test_the_pull_of_the_customers_image_is_no_late_start(
    *,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    pulled_until: int | None,
    started_after: int | None,
    seconds: int,
) -> None:
    """Times in minutes after the placement; the pull begins at once, and may still go on."""
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        attempt = Attempt(
            job_id=submit(session, cast.charlie, name="train").id,
            tenant_id=cast.globex.id,
            appliance_id=appliance_id,
            contract_id=contract_id,
            number=1,
            bound_at=NOON,
            assigned_at=NOON,
            state=AttemptState.RUNNING if started_after else AttemptState.STARTING,
            pull_began_at=NOON,
            pull_ended_at=pulled_until and NOON + timedelta(minutes=pulled_until),
            started_at=started_after and NOON + timedelta(minutes=started_after),
        )
        session.add(attempt)
    now = NOON + timedelta(minutes=started_after or 25)
    assert detect(sessions, store, now=now) == bool(seconds)
    with sessions() as session:
        breaches = session.scalars(select(ServiceBreach)).all()
    assert [breach.measured for breach in breaches] == [float(seconds)] * bool(seconds)


def test_an_attempt_that_ends_before_its_late_start_is_no_breach(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        contract_id, appliance_id = rent(session, cast)
        attempt = Attempt(
            job_id=submit(session, cast.charlie, name="train").id,
            tenant_id=cast.globex.id,
            appliance_id=appliance_id,
            contract_id=contract_id,
            number=1,
            bound_at=NOON,
            assigned_at=NOON,
            state=AttemptState.STARTING,
        )
        session.add(attempt)
    assert detect(sessions, store, now=NOON + timedelta(minutes=6)) == 1
    with transaction(sessions) as session:
        stopped = session.get_one(Attempt, attempt.id)
        stopped.state, stopped.finished_at = AttemptState.STOPPED, NOON + HOUR
    assert detect(sessions, store, now=NOON + 2 * HOUR) == 0
    with sessions() as session:
        assert session.scalars(select(ServiceBreach)).all() == []
    assert settle(sessions, now=NOON + timedelta(days=2)) == 0


@pytest.mark.parametrize(
    ("late_percent", "expected"),
    [
        # Of three attempts for 100 each, and a quarter of all: 255 of 300.
        (60, [60, 60, 75, 60]),
        # 255 before the last one, which has the 45 that are left.
        (90, [90, 90, 75, 45]),
        (100, [100, 100, 75, 25]),
    ],
)
def test_all_credits_of_a_month_are_never_more_than_its_use_cost(
    sessions: SessionFactory, session: Session, cast: Cast, late_percent: int, expected: list[int]
) -> None:
    level = msgspec.structs.replace(LEVEL, late_start_credit_percent=Decimal(late_percent))
    contract_id, appliance_id = rent(session, cast, level)
    attempts = []
    for number in range(3):
        at = MARCH + number * HOUR
        use(session, cast, contract_id, appliance_id, at)
        attempts.append((BreachKind.LATE_START, f"attempt-{at:%d-%H}"))
    breaches = []
    for kind, subject in (*attempts[:2], (BreachKind.AVAILABILITY, "2026-03"), attempts[2]):
        breach = ServiceBreach(
            contract_id=contract_id,
            provider_id=cast.acme.id,
            customer_id=cast.globex.id,
            version_number=1,
            kind=kind,
            subject=subject,
            since=MARCH,
            until=MARCH + HOUR,
            promised=99.5,
            measured=90.0,
            detected_at=MARCH,
        )
        session.add(breach)
        session.flush()
        breaches.append(breach)
    record_until(session, APRIL)
    session.commit()
    accrue_all(sessions)
    assert settle(sessions, now=APRIL + timedelta(days=2)) == 4
    session.expire_all()
    assert [breach.credit for breach in breaches] == expected
    lines = select(BillingLine).where(BillingLine.kind == LineKind.SERVICE_CREDIT)
    cut = [line.amount for line in session.scalars(lines) if "up to the cost" in line.note]
    assert cut == [-expected[3]] * (late_percent > 60)


def test_the_lowest_limit_that_was_missed_decides_the_credit() -> None:
    assert credit_percent(LEVEL.credits, 99.4) == 10
    assert credit_percent(LEVEL.credits, 94.9) == 25
    assert credit_percent(LEVEL.credits, 99.5) == 0

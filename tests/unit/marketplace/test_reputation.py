"""Reputation from evidence: what counts, what outlives its source, and what users see of it."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, Reason
from marketplace.accounts import account_of
from marketplace.cases import Case, Dimension
from marketplace.charges.models import BillingLine, LineKind
from marketplace.models import Account, Contract
from marketplace.reputation import sources
from marketplace.reputation.beta import reputation
from marketplace.reputation.days import availability_goodness
from marketplace.reputation.models import EvidenceDay, Rating, ReputationDay
from marketplace.reputation.opinions import RatingRequest, rate, ratings_of
from marketplace.reputation.refresh import refresh_reputations
from marketplace.reputation.service import Report, history_of, public_dimensions, report_of
from marketplace.service_levels.models import BreachKind, ServiceBreach
from tenants.models import Appliance, Grant, Membership, OfferedAppliance, Role, Tenant
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.attempts import LOST, end_attempts
from tests.unit.marketplace.builders import admit_sides, publish, take
from timeseries.points import Batch, Point
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Store, StoreUnavailableError

HALF_LIFE = timedelta(days=60)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def take_offer(session: Session, cast: Cast) -> str:
    admit_sides(session, cast)
    add_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
    return take(session, cast, publish(session, cast, "gpu-01")).id


@pytest.fixture
def contract(prefill: Callable[[Fill], str], sessions: SessionFactory) -> Contract:
    """Globex rents acme's `gpu-01`, which is on offer."""
    ident = prefill(take_offer)
    with transaction(sessions) as session:
        return session.get_one(Contract, ident)


def reachable(store: Store, session: Session, days: dict[int, float]) -> None:
    """Write what the portal saw of `gpu-01` in each hour of days before NOON's."""
    appliance = session.scalars(select(Appliance).where(Appliance.name == "gpu-01")).unique().one()
    midnight = NOON.replace(hour=0)
    points = [
        Point(
            "appliance_status",
            {},
            {"reachable": float(hour < round(24 * share))},
            to_ns(midnight - age * DAY + hour * HOUR),
        )
        for age, share in days.items()
        for hour in range(24)
    ]
    identity = {TENANT_TAG: appliance.tenant_id, APPLIANCE_TAG: appliance.id}
    store.submit(Batch.of(points), identity=identity).result()


def refresh(sessions: SessionFactory, store: Store, *, now: datetime = NOON) -> int:
    return refresh_reputations(sessions, store, now=now, half_life=HALF_LIFE)


def report(sessions: SessionFactory, cast: Cast, *, now: datetime = NOON) -> Report:
    with sessions() as session:
        return report_of(session, scope_of(cast.alice), now=now, half_life=HALF_LIFE)


def cases(measured: Report, dimension: Dimension) -> dict[str, tuple[float, float]]:
    """Return kinds with the sums of weights, and of the good part of them."""
    sums: dict[str, tuple[float, float]] = {}
    for case in measured.cases:
        if case.dimension is dimension:
            weight, good = sums.get(case.kind, (0.0, 0.0))
            sums[case.kind] = (weight + case.weight, good + case.weight * case.good)
    return sums


def test_an_account_starts_with_the_reputation_of_no_evidence(
    sessions: SessionFactory, cast: Cast
) -> None:
    new = reputation([], now=NOON, half_life=HALF_LIFE)
    with sessions() as session:
        account = account_of(session, cast.acme.id)
    low, high = new.overall.interval()
    stored = [account.reputation_mean, account.reputation_low, account.reputation_high]
    assert account.reputation == pytest.approx(new.score, abs=1e-4)
    assert stored == pytest.approx([new.overall.mean, low, high], abs=1e-4)


def test_evidence_moves_the_reputation_that_placement_and_lists_read(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    assert refresh(sessions, store) == 1
    with transaction(sessions) as session:
        before = session.get_one(Account, cast.acme.id).reputation
        end_attempts(session, cast, contract, *([LOST] * 6), *([{}] * 4))
    refresh(sessions, store, now=NOON)
    measured = report(sessions, cast)
    with sessions() as session:
        account = session.get_one(Account, cast.acme.id)
        grant = session.scalars(select(Grant)).one()
        (jobs,) = [
            row
            for row in public_dimensions(session, cast.acme.id)
            if row.dimension is Dimension.JOBS
        ]
    assert account.reputation < before
    assert account.reputation == grant.reputation == pytest.approx(measured.score, abs=1e-4)
    assert account.reputation_low < account.reputation_mean < account.reputation_high
    assert jobs.figure.mean < 0.5
    sums = cases(measured, Dimension.JOBS)
    assert sums["appliance_lost"][1] == 0
    assert sums["appliance_lost"][0] / sums["ran"][0] == pytest.approx(6 / 4)


def test_only_faults_of_the_provider_count_against_it(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    outcomes: list[dict[str, Any]] = [
        {"state": AttemptState.FAILED, "reason": Reason.EXIT_CODE},
        {"state": AttemptState.FAILED, "reason": Reason.OUT_OF_MEMORY},
        {"state": AttemptState.STOPPED, "reason": Reason.STOPPED_BY_USER},
        {"state": AttemptState.STOPPED, "reason": Reason.APPLIANCE_DRAINED},
        {"state": AttemptState.FAILED, "reason": Reason.START_FAILED, "started_at": None},
        # These say nothing: the customer's registry, and a job that was stopped while it waited.
        {"state": AttemptState.FAILED, "reason": Reason.IMAGE_PULL_FAILED, "started_at": None},
        {"state": AttemptState.STOPPED, "reason": Reason.STOPPED_BY_USER, "started_at": None},
    ]
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, *outcomes)
    refresh(sessions, store)
    sums = cases(report(sessions, cast), Dimension.JOBS)
    weight = sums["start_failed"][0]
    assert sums == {
        "ran": (pytest.approx(3 * weight), pytest.approx(3 * weight)),
        "appliance_drained": (pytest.approx(weight), pytest.approx(weight / 2)),
        "start_failed": (weight, 0.0),
    }


def test_days_of_offered_appliances_are_evidence_by_how_long_they_were_reachable(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    assert contract.id
    with sessions() as session:
        reachable(store, session, {1: 1.0, 2: 1.0, 3: 0.5})
    refresh(sessions, store)
    measured = report(sessions, cast)
    assert cases(measured, Dimension.AVAILABILITY) == {
        "reachable": (2.0, 2.0),
        "unreachable": (1.0, 0.0),
    }
    (worst,) = measured.evidence(kind="unreachable").items
    assert worst.text == "1 appliance reachable 50 % of 2026-02-27"
    assert [availability_goodness(share) for share in (1.0, 0.999, 0.95, 0.2)] == [1, 1, 0, 0]
    assert availability_goodness(0.9745) == pytest.approx(0.5)


def test_evidence_outlives_withdrawn_appliances_deleted_jobs_and_lost_samples(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        reachable(store, session, {1: 0.5})
        end_attempts(session, cast, contract, LOST)
    refresh(sessions, store)
    before = report(sessions, cast)
    with transaction(sessions) as session:
        session.execute(delete(OfferedAppliance))
        session.execute(delete(Attempt))
        session.execute(delete(Job))
    refresh(sessions, store)
    assert report(sessions, cast).score == pytest.approx(before.score)


class AwayStore:
    """A store that is unavailable."""

    def query_range(self, _query: object) -> Sequence[object]:
        raise StoreUnavailableError("away")


def test_without_the_store_the_rest_is_brought_up_to_date(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        reachable(store, session, {1: 1.0})
    refresh(sessions, store)
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, LOST)
    refresh(sessions, AwayStore())  # type: ignore[arg-type] # only what is asked of it
    measured = report(sessions, cast)
    assert cases(measured, Dimension.AVAILABILITY)["reachable"] == (1.0, 1.0)
    assert "appliance_lost" in cases(measured, Dimension.JOBS)


def test_a_refresh_twice_or_half_way_counts_nothing_twice(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, LOST, {}, {})
    refresh(sessions, store)
    first = report(sessions, cast).score
    for hours in range(3):
        refresh(sessions, store, now=NOON + hours * timedelta(minutes=1))
    assert report(sessions, cast).score == pytest.approx(first)
    with sessions() as session:
        rows = session.scalars(select(EvidenceDay)).all()
    assert sum(row.total for row in rows) == 3


def test_broken_promises_are_cases(
    sessions: SessionFactory, cast: Cast, contract: Contract
) -> None:
    common = {
        "contract_id": contract.id,
        "provider_id": cast.acme.id,
        "customer_id": cast.globex.id,
        "version_number": 1,
        "since": NOON - DAY,
        "until": NOON,
        "detected_at": NOON,
        "evidence": {},
    }
    with transaction(sessions) as session:
        session.add(
            ServiceBreach(
                kind=BreachKind.AVAILABILITY,
                subject="2026-03",
                promised=99.5,
                measured=98.0,
                **common,
            )
        )
        session.add(
            ServiceBreach(
                kind=BreachKind.LATE_START, subject="a", promised=300, measured=600, **common
            )
        )
    measured = report(sessions, cast)
    assert cases(measured, Dimension.AVAILABILITY) == {"availability_breach": (5.0, 0.0)}
    assert "late_start" in cases(measured, Dimension.JOBS)
    assert "Available 98 % of 2026-03, promised 99.5 %" in [case.text for case in measured.cases]


def test_other_parts_add_their_cases(
    sessions: SessionFactory, cast: Cast, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checks(_session: Session, provider_id: str, *, since: datetime) -> Sequence[Case]:
        assert (provider_id, since) == (contract.provider_id, NOON - 6 * HALF_LIFE)
        failed = Case(dimension=Dimension.CHECKS, good=0.0, at=NOON - DAY, kind="memory_short")
        future = Case(dimension=Dimension.CHECKS, good=1.0, at=NOON + DAY, kind="passed")
        return [failed, future]

    before = report(sessions, cast).score
    monkeypatch.setattr(sources, "SOURCES", (checks,))
    measured = report(sessions, cast)
    assert measured.score < before
    assert cases(measured, Dimension.CHECKS) == {"memory_short": (1.0, 0.0)}


def test_the_first_refresh_computes_the_past_and_each_day_adds_a_row(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        for days in range(1, 31):
            end_attempts(session, cast, contract, LOST if days > 20 else {}, at=NOON - days * DAY)
    refresh(sessions, store)
    with sessions() as session:
        rows = history_of(session, scope_of(cast.alice), days=90, now=NOON)
    assert [row.day_at for row in rows] == [
        NOON.replace(hour=0) - n * DAY for n in range(30, -1, -1)
    ]
    assert rows[9].mean < rows[0].mean < rows[-1].mean
    refresh(sessions, store, now=NOON + DAY)
    refresh(sessions, store, now=NOON + DAY + HOUR)
    with sessions() as session:
        assert len(session.scalars(select(ReputationDay)).all()) == 32


def test_causes_and_improvements_are_concrete(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, *([LOST] * 5), {})
        reachable(store, session, {1: 0.5, 2: 1.0})
    refresh(sessions, store)
    measured = report(sessions, cast)
    assert [cause.kind for cause in measured.causes] == ["appliance_lost", "unreachable"]
    assert measured.causes[0].cost > measured.causes[1].cost > 0
    by_dimension = {row.dimension: row for row in measured.improvements}
    days = by_dimension[Dimension.AVAILABILITY]
    assert days.text.startswith(
        f"{days.amount} more days with your appliance on offer reachable at least 99.9 % of"
    )
    assert days.gain >= 0.03
    jobs = by_dimension[Dimension.JOBS]
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, *([{}] * 40), at=NOON - 2 * HOUR)
    refresh(sessions, store)
    assert report(sessions, cast).score >= measured.score + jobs.gain


def test_a_provider_sees_its_own_reputation_the_operator_any_and_others_none(
    sessions: SessionFactory, cast: Cast, contract: Contract
) -> None:
    with sessions() as session:
        olivia, charlie = scope_of(cast.olivia), scope_of(cast.charlie)
        shown = report_of(session, olivia, cast.acme.id, now=NOON, half_life=HALF_LIFE)
        assert shown.provider_id == contract.provider_id
        with pytest.raises(NotFoundError):
            report_of(session, charlie, cast.acme.id, now=NOON, half_life=HALF_LIFE)


def rating(session: Session, cast: Cast, contract: Contract, stars: int, **values: Any) -> Rating:  # noqa: ANN401 - fields
    now = values.pop("now", NOON)
    wanted = RatingRequest(stars=stars, **values)
    return rate(session, scope_of(cast.charlie), contract.id, wanted, now=now)


def test_a_customer_rates_once_a_month_after_a_job_ended_there(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        with pytest.raises(ConflictError, match="Rate it once a job has"):
            rating(session, cast, contract, 5)
        end_attempts(session, cast, contract, {})
        session.add(
            BillingLine(
                tenant_id=cast.globex.id,
                provider_id=cast.acme.id,
                contract_id=contract.id,
                kind=LineKind.USAGE,
                at=NOON - HOUR,
                recorded_at=NOON,
                gpu_milliseconds=20 * 3_600_000,
                unit_price=Decimal(2),
                amount=Decimal(40),
            )
        )
        given = rating(session, cast, contract, 1, comment="slow disks")
        changed = rating(session, cast, contract, 5, comment="fast now")
        assert changed.id == given.id
        assert (changed.month, changed.stars) == ("2026-03", 5)
    refresh(sessions, store)
    measured = report(sessions, cast)
    (case,) = measured.evidence(dimension=Dimension.SATISFACTION).items
    assert (case.kind, case.text) == ("rated_5", "fast now")
    assert case.weight == pytest.approx(2.5)
    assert cast.globex.id not in str(case)
    with sessions() as session:
        (row,) = ratings_of(session, scope_of(cast.charlie), contract.id)
        assert row.gpu_milliseconds == 20 * 3_600_000


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"stars": 0}, "stars"),
        ({"stars": 6}, "stars"),
        ({"stars": 3, "comment": "x" * 1001}, "comment"),
        ({"stars": 3, "comment": "a\x00b"}, "comment"),
        ({"stars": 3, "month": "2026-01"}, "month"),
        ({"stars": 3, "month": "March"}, "month"),
    ],
)
def test_a_bad_rating_is_refused_at_its_field(
    sessions: SessionFactory,
    cast: Cast,
    contract: Contract,
    values: dict[str, Any],
    field: str,
) -> None:
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, {})
        with pytest.raises(InvalidInputError) as error:
            rating(session, cast, contract, **values)
    assert list(error.value.errors) == [field]


def test_the_provider_and_others_do_not_rate(
    sessions: SessionFactory, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, {})
        wanted = RatingRequest(stars=5)
        with pytest.raises(ForbiddenError):
            rate(session, scope_of(cast.alice), contract.id, wanted, now=NOON)
        with pytest.raises(ForbiddenError):
            ratings_of(session, scope_of(cast.alice), contract.id)


def test_last_month_can_be_rated_and_the_one_before_not(
    sessions: SessionFactory, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, {})
        assert rating(session, cast, contract, 4, now=NOON + 30 * DAY).month == "2026-03"
        with pytest.raises(ConflictError):
            rating(session, cast, contract, 4, now=NOON + 60 * DAY)


def test_ties_come_from_billing_emails_shared_users_and_mutual_praise(
    sessions: SessionFactory, store: Store, cast: Cast, contract: Contract
) -> None:
    with transaction(sessions) as session:
        end_attempts(session, cast, contract, *([{}] * 50))
        account = session.get_one(Account, cast.globex.id)
        account.billing_email = "bills@globex.example"

    def weight() -> float:
        refresh(sessions, store)
        return cases(report(sessions, cast), Dimension.JOBS)["ran"][0]

    free = weight()
    with transaction(sessions) as session:
        session.get_one(Account, cast.globex.id).billing_email = "bills@acme.example"
    assert weight() == pytest.approx(free / 100)
    with transaction(sessions) as session:
        session.get_one(Account, cast.globex.id).billing_email = "globex@gmail.com"
    assert weight() == pytest.approx(free)
    with transaction(sessions) as session:
        # Acme rents from globex, too, and praises it.
        mutual = Contract(
            offer_id="o",
            offer_name="A100s",
            provider_id=cast.globex.id,
            provider_name="Globex",
            customer_id=cast.acme.id,
            customer_name="Acme",
            state=contract.state,
            created_at=NOON,
        )
        session.add(mutual)
        session.flush()
        session.add(
            Rating(
                contract_id=mutual.id,
                provider_id=cast.globex.id,
                tenant_id=cast.acme.id,
                month="2026-03",
                stars=5,
                created_by=cast.alice.email,
                created_at=NOON,
                updated_at=NOON,
            )
        )
    assert weight() == pytest.approx(free / 100)
    with transaction(sessions) as session:
        session.execute(delete(Rating))
        session.add(
            Membership(
                user_id=cast.bob.id, tenant_id=cast.globex.id, role=Role.VIEWER, created_at=NOON
            )
        )
    assert weight() == pytest.approx(free / 100)

"""An error of one tenant does not stop what is done for the others."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, true, update
from sqlalchemy.orm import Session

import marketplace.budgets.credit
import marketplace.invoices.closing
import marketplace.periodic_tasks
from core.clock import to_ns
from core.db import SessionFactory
from core.errors import DatabaseUnavailableError
from core.periodic_tasks import SchedulerContext
from core.settings import ServerSettings
from jobqueue.holds.models import JobHold
from marketplace.budgets.models import Budget, BudgetAction
from marketplace.charges.models import BillingLine
from marketplace.charges.replay import replay
from marketplace.charges.service import accrue
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import issue
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.invoices.replay import replay_documents
from marketplace.models import Account, Contract, ContractVersion
from marketplace.periodic_tasks import MarketTasks
from marketplace.service_levels.credits import settle
from marketplace.service_levels.detection import detect
from marketplace.service_levels.models import ServiceBreach
from marketplace.tenant_errors import TenantErrors, TenantsFailedError
from marketplace.terms import ServiceLevel
from tenants.models import Tenant, TenantState
from tenants.models.rentals import Grant
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import admit_sides, publish, take
from tests.unit.marketplace.builders import terms as market_terms
from tests.unit.marketplace.conftest import MakeTasks
from tests.unit.marketplace.cost_builders import add_budget, add_line
from tests.unit.marketplace.ledger import (
    ALL,
    APRIL,
    GPU_HOUR,
    MARCH,
    MAY,
    accrue_all,
    add_contract,
    add_use,
    terms,
)
from tests.unit.marketplace.months import DUE, ISSUING, record_until
from timeseries.points import Batch, Point
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Store

MAY_DUE = MAY + timedelta(days=2)
INVOICE, STATEMENT = DocumentKind.INVOICE, DocumentKind.STATEMENT
Documents = dict[tuple[str, DocumentKind, str], Decimal]


@pytest.fixture
def initech(session: Session) -> Tenant:
    tenant = Tenant(slug="initech", name="Initech", state=TenantState.ACTIVE, created_at=NOON)
    session.add(tenant)
    session.flush()
    return tenant


@pytest.fixture
def poisoned(session: Session, cast: Cast) -> Contract:
    """A contract of acme, which rents from globex; `poison` spoils it."""
    return add_contract(session, cast, terms("2.00"))


@pytest.fixture
def sound(session: Session, cast: Cast, initech: Tenant) -> Contract:
    """A contract of initech, which rents from globex, too."""
    contract = add_contract(session, cast, terms("3.00"), name="H200 in Oslo")
    contract.customer_id, contract.customer_name = initech.id, initech.name
    session.flush()
    return contract


def poison(session: Session, contract: Contract) -> Callable[[], None]:
    """Store terms that can't be read; return a function that repairs them."""
    version = select(ContractVersion.terms).where(ContractVersion.contract_id == contract.id)
    before = session.scalar(version)
    change = update(ContractVersion).where(ContractVersion.contract_id == contract.id)
    session.execute(change.values(terms={"price": "spoilt"}))
    session.commit()

    def repair() -> None:
        session.execute(change.values(terms=before))
        session.commit()

    return repair


def documents(session: Session) -> Documents:
    """Return the sums of all documents by month, kind and tenant."""
    session.expire_all()
    return {
        (f"{row.month_at:%Y-%m}", row.kind, row.tenant_name): row.net
        for row in session.scalars(select(BillingDocument))
    }


@pytest.fixture
def ledger(session: Session, sessions: SessionFactory, poisoned: Contract, sound: Contract) -> None:
    """An hour of each contract in March, two in April."""
    for contract in (poisoned, sound):
        add_use(session, contract.customer_id, MARCH, contract=contract)
        add_use(session, contract.customer_id, APRIL, 2 * GPU_HOUR, contract=contract)
    record_until(session, APRIL)
    record_until(session, MAY)
    session.commit()
    accrue_all(sessions, now=MAY)


@pytest.mark.usefixtures("ledger")
def test_a_contract_that_cannot_be_closed_delays_the_documents_of_its_sides_alone(
    *,
    sessions: SessionFactory,
    session: Session,
    poisoned: Contract,
    sound: Contract,
    caplog: pytest.LogCaptureFixture,
) -> None:
    repair = poison(session, poisoned)
    with pytest.raises(TenantsFailedError, match=poisoned.customer_id):
        close_months(sessions, ISSUING, now=DUE)
    assert f"of tenant {poisoned.customer_id} and {poisoned.provider_id}" in caplog.text
    of_initech: Documents = {("2026-03", INVOICE, "Initech"): Decimal(3)}
    assert documents(session) == of_initech
    # What is added meanwhile is in the next month's documents, which are issued in time.
    add_use(session, sound.customer_id, MARCH, GPU_HOUR, contract=sound)
    session.commit()
    repair()
    accrue_all(sessions, now=MAY)
    repair = poison(session, poisoned)
    with pytest.raises(TenantsFailedError):
        close_months(sessions, ISSUING, now=MAY_DUE)
    of_initech["2026-04", INVOICE, "Initech"] = Decimal(9)
    assert documents(session) == of_initech
    repair()
    assert close_months(sessions, ISSUING, now=MAY_DUE) == [MARCH, APRIL]
    assert documents(session) == of_initech | {
        ("2026-03", INVOICE, "Acme"): Decimal(2),
        ("2026-03", STATEMENT, "Globex"): Decimal(5),
        ("2026-04", INVOICE, "Acme"): Decimal(4),
        ("2026-04", STATEMENT, "Globex"): Decimal(13),
    }
    assert replay_documents(sessions, since=MARCH, until=MAY)[1] == []


@pytest.mark.usefixtures("ledger", "sound")
def test_a_document_that_cannot_be_issued_delays_those_of_its_tenant_alone(
    sessions: SessionFactory,
    session: Session,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def issue_for_others(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - as those of `issue`
        if cast.acme.id in args:
            raise ZeroDivisionError
        return issue(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(marketplace.invoices.closing, "issue", issue_for_others)
        with pytest.raises(TenantsFailedError, match=cast.acme.id):
            close_months(sessions, ISSUING, now=MAY_DUE)
    of_others = {
        ("2026-03", INVOICE, "Initech"): Decimal(3),
        ("2026-03", STATEMENT, "Globex"): Decimal(5),
        ("2026-04", INVOICE, "Initech"): Decimal(6),
        ("2026-04", STATEMENT, "Globex"): Decimal(10),
    }
    assert documents(session) == of_others
    assert close_months(sessions, ISSUING, now=MAY_DUE) == [MARCH, APRIL]
    assert documents(session) == of_others | {
        ("2026-03", INVOICE, "Acme"): Decimal(2),
        ("2026-04", INVOICE, "Acme"): Decimal(4),
    }


def test_breaches_of_other_contracts_are_recorded_and_settled(
    *,
    sessions: SessionFactory,
    session: Session,
    store: Store,
    cast: Cast,
    poisoned: Contract,
    sound: Contract,
) -> None:
    promised = msgspec.to_builtins(terms(service_level=ServiceLevel(availability_percent=99.5)))
    session.execute(update(ContractVersion).values(terms=promised))
    for contract in (poisoned, sound):
        add_use(session, contract.customer_id, MARCH, contract=contract, appliance_id="dgx-01")
    record_until(session, APRIL)
    session.commit()
    accrue_all(sessions)
    point = Point("appliance_status", {}, {"reachable": 0.0}, to_ns(MARCH))
    identity = {TENANT_TAG: cast.globex.id, APPLIANCE_TAG: "dgx-01"}
    store.submit(Batch.of([point]), identity=identity).result()
    repair = poison(session, poisoned)
    with pytest.raises(TenantsFailedError, match=cast.acme.id):
        detect(sessions, store, now=APRIL)
    breach = session.scalars(select(ServiceBreach)).one()
    assert breach.contract_id == sound.id
    repair()
    assert detect(sessions, store, now=APRIL) == 1
    repair = poison(session, poisoned)
    with pytest.raises(TenantsFailedError, match=cast.acme.id):
        settle(sessions, now=DUE)
    statement = select(ServiceBreach.contract_id).where(ServiceBreach.settled_at.is_(None))
    assert session.scalars(statement).all() == [poisoned.id]
    repair()
    assert settle(sessions, now=DUE) == 1


def test_budgets_and_credit_of_other_tenants_are_compared(
    *,
    session: Session,
    cast: Cast,
    make_tasks: MakeTasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def balance_of(_session: Session, tenant_id: str) -> Decimal:
        if tenant_id == cast.acme.id:
            raise ZeroDivisionError
        return Decimal(-1)

    monkeypatch.setattr(marketplace.budgets.credit, "balance_of", balance_of)
    for user, tenant in ((cast.alice, cast.acme), (cast.charlie, cast.globex)):
        session.add(Account(tenant_id=tenant.id, is_prepaid=True, updated_at=NOON))
        add_budget(session, user, "5", action=BudgetAction.STOP_NEW_JOBS)
        add_line(session, tenant, "7")
    session.execute(
        update(Budget).where(Budget.tenant_id == cast.acme.id).values(amount=Decimal(0))
    )
    session.commit()
    with pytest.raises(TenantsFailedError, match=cast.acme.id):
        make_tasks(data_dir=tmp_path, marketplace=True).watch_budgets()
    holds = session.scalars(select(JobHold)).all()
    assert {(hold.tenant_id, hold.is_for_rentals) for hold in holds} == {
        (cast.globex.id, False),
        (cast.globex.id, True),
    }


def lines(session: Session, contract: Contract) -> list[Decimal]:
    """Return the amounts of the lines of a contract."""
    statement = select(BillingLine.amount).where(BillingLine.contract_id == contract.id)
    return list(session.scalars(statement.order_by(BillingLine.at)))


def test_the_use_of_other_contracts_is_charged(
    sessions: SessionFactory, session: Session, poisoned: Contract, sound: Contract
) -> None:
    for hour_at in (MARCH, APRIL):
        add_use(session, poisoned.customer_id, hour_at, contract=poisoned)
        add_use(session, sound.customer_id, hour_at, contract=sound)
    record_until(session, APRIL)
    repair = poison(session, poisoned)
    assert accrue(sessions, now=DUE) == 2
    with pytest.raises(TenantsFailedError, match=poisoned.customer_id):
        accrue(sessions, now=DUE)
    assert (lines(session, poisoned), lines(session, sound)) == ([], [Decimal(3)] * 2)
    # The month of the others is closed; that of both sides waits until it is charged.
    for is_repaired in (False, True):
        if is_repaired:
            repair()
        with pytest.raises(TenantsFailedError, match=poisoned.customer_id):
            close_months(sessions, ISSUING, now=DUE)
        assert documents(session) == {("2026-03", INVOICE, "Initech"): Decimal(3)}
    assert accrue(sessions, now=DUE) == 2
    assert accrue(sessions, now=DUE) == 0
    assert lines(session, poisoned) == [Decimal(2)] * 2
    assert close_months(sessions, ISSUING, now=DUE) == [MARCH]
    assert documents(session)["2026-03", INVOICE, "Acme"] == Decimal(2)
    assert replay(sessions, ALL).is_equal


def test_other_contracts_and_offers_are_refreshed(
    *,
    sessions: SessionFactory,
    session: Session,
    cast: Cast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admit_sides(session, cast)
    contracts = []
    for name in ("dgx-01", "dgx-02"):
        add_appliance(session, cast.acme, name)
        offer = publish(session, cast, name, name=name, terms=market_terms())
        contracts.append(take(session, cast, offer))
    spoilt, sound = contracts
    repair = poison(session, spoilt)
    tasks = MarketTasks(
        ServerSettings(data_dir=tmp_path, marketplace=True),
        SchedulerContext(
            sessions=sessions,
            clock=lambda: NOON + timedelta(hours=1),
            listening_since=NOON,
            is_active=lambda: True,
            has_lease=true(),
            is_stopping=lambda: False,
            run_soon=lambda _task: None,
        ),
    )

    def grants() -> dict[str, tuple[bool, bool]]:
        """Return by contract whether its grant is open, and of this run."""
        session.expire_all()
        return {
            grant.contract_id: (grant.is_open, grant.refreshed_at > NOON)
            for grant in session.scalars(select(Grant))
        }

    with pytest.raises(TenantsFailedError, match=cast.acme.id):
        tasks.refresh_grants()
    assert grants() == {spoilt.id: (False, False), sound.id: (True, True)}
    repair()
    tasks.refresh_grants()
    assert grants()[spoilt.id] == (True, True)
    # One that is over ends, whatever its terms are.
    poison(session, spoilt)
    session.get_one(Contract, spoilt.id).ends_at = NOON
    session.commit()
    tasks.refresh_grants()
    assert list(grants()) == [sound.id]

    refreshed = []

    def refresh(_session: Session, provider_id: str, **_options: Any) -> None:  # noqa: ANN401
        if provider_id == cast.acme.id:
            raise ZeroDivisionError
        refreshed.append(provider_id)

    monkeypatch.setattr(marketplace.periodic_tasks, "refresh_provider", refresh)
    providers = lambda _session: [cast.acme.id, cast.globex.id]  # noqa: E731 - as of the module
    monkeypatch.setattr(marketplace.periodic_tasks, "providers", providers)
    with pytest.raises(TenantsFailedError, match=cast.acme.id):
        tasks.refresh_offers()
    assert refreshed == [cast.globex.id]


def test_an_error_that_all_tenants_have_ends_the_task() -> None:
    errors = TenantErrors("close months")
    with pytest.raises(DatabaseUnavailableError), errors.of("acme"):
        raise DatabaseUnavailableError("busy")
    errors.raise_if_any()

"""Months are closed: invoices and statements agree to the cent with a ledger computed by hand."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from core.db import SessionFactory
from core.money import cents
from core.settings import ServerSettings
from jobqueue.projects.models import Project
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.prepaid import add_credit, balance_of
from marketplace.charges.service import add_line
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import Issuing
from marketplace.invoices.items import Item, decoded
from marketplace.invoices.models import BillingDocument, ClosedLine, DocumentKind
from marketplace.invoices.replay import replay_documents
from marketplace.models import Account, Contract
from marketplace.prices.models import PriceList
from tenants.models import Tenant
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.statements import KilledError, killed_at
from tests.unit.marketplace.ledger import (
    A10,
    APRIL,
    GPU_HOUR,
    H100,
    HOUR,
    MARCH,
    MAY,
    accrue_all,
    add_contract,
    add_use,
    lines,
    terms,
)
from tests.unit.marketplace.months import DUE, ISSUING, close, record_until


def document(
    session: Session, kind: DocumentKind = DocumentKind.INVOICE, month_at: datetime = MARCH
) -> BillingDocument:
    statement = select(BillingDocument).where(
        BillingDocument.kind == kind, BillingDocument.month_at == month_at
    )
    return session.scalars(statement).one()


def items(document: BillingDocument) -> list[Item]:
    return decoded(document.items)


@pytest.fixture
def contract(session: Session, cast: Cast) -> Contract:
    """H100 for 2.45 less 10 %."""
    return add_contract(session, cast, terms("2.45", discount_percent=Decimal(10)))


@pytest.fixture
def month(session: Session, cast: Cast, contract: Contract) -> Contract:
    """1 hour and 20 minutes of an H100, and 10 minutes of an A10 under another contract."""
    add_use(session, cast.acme.id, MARCH, contract=contract)
    add_use(session, cast.acme.id, MARCH + HOUR, GPU_HOUR // 3, contract=contract)
    cheap = add_contract(session, cast, terms("0.35"), name="A10 in Bergen")
    add_use(session, cast.acme.id, MARCH, GPU_HOUR // 6, contract=cheap, gpu_model=A10)
    session.commit()
    return contract


@pytest.mark.usefixtures("month")
def test_an_invoice_and_a_statement_agree_with_the_ledger_computed_by_hand(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    assert close(sessions) == [MARCH]
    invoice, statement = document(session), document(session, DocumentKind.STATEMENT)
    # 2.45 * 1.333333 = 3.26666667, of which 10 % are 0.32666667; 0.35 / 6 = 0.05833333.
    expected = [
        (1, "A10 in Bergen", LineKind.USAGE, A10, "0.166667", "0.35", "0.06"),
        (2, "H100 in Oslo", LineKind.USAGE, H100, "1.333333", "2.45", "3.27"),
        (3, "H100 in Oslo", LineKind.DISCOUNT, H100, "0", "0", "-0.33"),
    ]
    for issued in (invoice, statement):
        assert [
            (
                *(item.number, item.subject, item.kind, item.gpu_model),
                *(item.gpu_hours, item.unit_price, item.amount),
            )
            for item in items(issued)
        ] == [(*row[:4], *map(Decimal, row[4:])) for row in expected]
    # 0.06 + 3.27 - 0.33 = 3.00; 25 % tax; 10 % fee.
    assert (invoice.net, invoice.tax, invoice.total) == (
        Decimal("3.00"),
        Decimal("0.75"),
        Decimal("3.75"),
    )
    assert (statement.net, statement.fee, statement.total) == (
        Decimal("3.00"),
        Decimal("0.30"),
        Decimal("2.70"),
    )
    assert (invoice.tenant_id, statement.tenant_id) == (cast.acme.id, cast.globex.id)
    assert (invoice.number, statement.number) == ("INV-2026-00001", "STA-2026-00001")
    assert {item.other_side for item in items(invoice)} == {"Globex"}
    assert {item.other_side for item in items(statement)} == {"Acme"}
    assert replay_documents(sessions, since=MARCH, until=MAY) == (2, [])


@pytest.mark.usefixtures("month")
def test_accounts_have_their_own_tax_fee_and_address(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    session.add_all(
        [
            Account(
                tenant_id=cast.acme.id,
                legal_name="Acme GmbH",
                address="Am Markt 1, Jena",
                country="DE",
                tax_number="DE123456789",
                billing_email="bills@acme.example",
                tax_percent=Decimal("7.7"),
                updated_at=NOON,
            ),
            Account(tenant_id=cast.globex.id, fee_percent=Decimal("12.5"), updated_at=NOON),
        ]
    )
    session.commit()
    close(sessions)
    invoice, statement = document(session), document(session, DocumentKind.STATEMENT)
    assert invoice.tax == Decimal("0.23")  # 3.00 * 7.7 % = 0.231
    assert statement.fee == Decimal("0.38")  # 3.00 * 12.5 % = 0.375, half up
    assert invoice.party["legal_name"] == "Acme GmbH"
    [message] = session.scalars(select(Notification))
    assert message.address == "bills@acme.example"
    assert message.payload["subject"] == "Invoice INV-2026-00001: EUR 3.23"


@pytest.mark.usefixtures("month")
def test_percentages_of_settings_have_as_many_places_as_are_stored(
    sessions: SessionFactory, session: Session
) -> None:
    settings = ServerSettings(tax_percent=8.3333333333, marketplace_fee_percent=1 / 3)
    record_until(session, APRIL)
    session.commit()
    accrue_all(sessions)
    assert close_months(sessions, Issuing.of(settings), now=DUE) == [MARCH]
    assert document(session).tax == Decimal("0.25")


def test_a_removed_customer_has_the_name_of_its_contract(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    add_use(session, cast.acme.id, MARCH, contract=contract)
    session.commit()
    accrue_all(sessions)
    session.execute(delete(Tenant).where(Tenant.id == cast.acme.id))
    session.commit()
    close(sessions)
    assert document(session).tenant_name == "Acme"
    assert document(session, DocumentKind.STATEMENT).net == document(session).net


@pytest.mark.usefixtures("month")
def test_a_month_is_closed_when_it_is_complete(sessions: SessionFactory, session: Session) -> None:
    accrue_all(sessions)
    # The ledger lacks the last hour.
    assert close_months(sessions, ISSUING, now=DUE) == []
    record_until(session, APRIL)
    session.commit()
    # That hour is not charged.
    assert close_months(sessions, ISSUING, now=DUE) == []
    accrue_all(sessions)
    assert close_months(sessions, ISSUING, now=DUE - timedelta(seconds=1)) == []
    assert close_months(sessions, ISSUING, now=DUE) == [MARCH]
    assert close_months(sessions, ISSUING, now=DUE) == []


def test_late_corrections_are_in_the_next_month_as_such(
    sessions: SessionFactory, session: Session, cast: Cast, month: Contract
) -> None:
    close(sessions)
    issued = document(session).items
    add_use(session, cast.acme.id, MARCH, -GPU_HOUR // 2, contract=month)
    add_use(session, cast.acme.id, APRIL, contract=month)
    session.commit()
    assert close(sessions, month_end=MAY) == [APRIL]
    session.expire_all()
    assert document(session).items == issued
    later = document(session, month_at=APRIL)
    # -2.45 / 2 = -1.225; 10 % of it 0.1225; 2.45; 0.245.
    assert [(item.month, item.kind.value, str(item.amount)) for item in items(later)] == [
        ("2026-03", "usage", "-1.23"),
        ("2026-03", "discount", "0.12"),
        ("2026-04", "usage", "2.45"),
        ("2026-04", "discount", "-0.25"),
    ]
    assert later.net == document(session, DocumentKind.STATEMENT, APRIL).net == Decimal("1.09")
    assert session.query(ClosedLine).count() == session.query(BillingLine).count()


def test_a_month_of_credits_alone_is_a_credit_note(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    add_line(
        session,
        kind=LineKind.SERVICE_CREDIT,
        tenant_id=cast.acme.id,
        provider_id=cast.globex.id,
        contract_id=contract.id,
        at=MARCH,
        amount=Decimal("-4.015"),
        source_id="breach:1",
        note="availability 98.2 %",
        now=MARCH,
    )
    session.commit()
    close(sessions)
    note = document(session)
    assert (note.title, note.net, note.total) == (
        "Credit note",
        Decimal("-4.02"),
        Decimal("-5.03"),  # tax of -1.005
    )
    assert items(note)[0].text == "Service credit: availability 98.2 %"


class TestCommitments:
    def test_what_was_not_used_is_charged(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        first = terms("2.00", commitment_gpu_hours=100, discount_percent=Decimal(10))
        contract = add_contract(session, cast, first)
        add_use(session, cast.acme.id, MARCH, 40 * GPU_HOUR, contract=contract)
        session.commit()
        close(sessions)
        [line] = lines(session, BillingLine.kind == LineKind.COMMITMENT)
        assert (line.gpu_milliseconds, line.amount) == (60 * GPU_HOUR, Decimal("108.00"))
        assert document(session).net == Decimal("180.00")  # 100 hours at 2.00 less 10 %

    def test_a_contract_that_nobody_ever_used_is_charged(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        contract = add_contract(session, cast, terms("2.00", commitment_gpu_hours=100))
        session.commit()
        # No attempt was ever placed, so the ledger has no hour.
        assert close_months(sessions, ISSUING, now=DUE) == [MARCH]
        assert document(session).net == Decimal(200)
        # Its first use, months later, loses none of the months before.
        add_use(session, cast.acme.id, MAY, contract=contract)
        session.commit()
        assert close(sessions, month_end=MAY + timedelta(days=31)) == [APRIL, MAY]
        assert document(session, month_at=APRIL).net == Decimal(200)
        assert document(session, month_at=MAY).net == Decimal(200)

    def test_it_counts_for_the_part_of_the_month(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        # From the 11th on: 21 of 31 days.
        first = terms("1.00", commitment_gpu_hours=310)
        add_contract(session, cast, first, starts_at=MARCH + timedelta(days=10))
        entry = add_contract(session, cast, terms("1.00"), name="other")
        add_use(session, cast.acme.id, MARCH, contract=entry)
        session.commit()
        close(sessions)
        [line] = lines(session, BillingLine.kind == LineKind.COMMITMENT)
        assert line.amount == Decimal("210.00")

    def test_a_late_correction_changes_what_was_missing(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        first = terms("2.00", commitment_gpu_hours=10)
        contract = add_contract(session, cast, first, ends_at=APRIL)
        add_use(session, cast.acme.id, MARCH, 4 * GPU_HOUR, contract=contract)
        session.commit()
        close(sessions)
        add_use(session, cast.acme.id, MARCH, GPU_HOUR, contract=contract)
        session.commit()
        close(sessions, month_end=MAY)
        amounts = [line.amount for line in lines(session, BillingLine.kind == LineKind.COMMITMENT)]
        assert amounts == [Decimal("12.00"), Decimal("-2.00")]
        assert [str(item.amount) for item in items(document(session, month_at=APRIL))] == [
            "2.00",
            "-2.00",
        ]
        assert document(session, month_at=APRIL).net == 0


@pytest.mark.usefixtures("month")
class TestPrepaid:
    def test_an_invoice_is_paid_with_credit_as_far_as_it_lasts(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        operator = scope_of(cast.olivia)
        add_credit(session, operator, cast.acme.id, Decimal("3.00"), reference="bank 1", now=NOON)
        session.commit()
        close(sessions)
        invoice = document(session)
        assert (invoice.total, invoice.prepaid, invoice.due) == (
            Decimal("3.75"),
            Decimal("3.00"),
            Decimal("0.75"),
        )
        assert balance_of(session, cast.acme.id) == 0

    def test_what_is_left_remains(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        operator = scope_of(cast.olivia)
        add_credit(session, operator, cast.acme.id, Decimal("10.00"), reference="bank 1", now=NOON)
        session.commit()
        close(sessions)
        assert document(session).due == 0
        assert balance_of(session, cast.acme.id) == Decimal("6.25")


def test_own_use_is_a_cost_statement_by_project(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    project = Project(tenant_id=cast.acme.id, name="vision", created_at=NOON)
    session.add(project)
    session.add(
        PriceList(
            tenant_id=cast.acme.id,
            owner=cast.acme.id,
            number=1,
            valid_from=MARCH,
            prices=[{"gpu_model": "H100", "price": "1.999"}, {"gpu_model": "", "price": "0.2"}],
            charged_at=MARCH,
            created_by="alice@acme.example",
            created_at=MARCH,
        )
    )
    session.flush()
    add_use(session, cast.acme.id, MARCH, project_id=project.id)
    add_use(session, cast.acme.id, MARCH, GPU_HOUR // 2)
    add_use(session, cast.acme.id, MARCH, 3 * GPU_HOUR, gpu_model=A10)
    session.commit()
    close(sessions)
    [issued] = session.scalars(select(BillingDocument))
    assert (issued.kind, issued.number) == (DocumentKind.COST_STATEMENT, "COST-2026-03")
    assert [(item.subject, item.gpu_model, str(item.amount)) for item in items(issued)] == [
        ("No project", A10, "0.60"),
        ("No project", H100, "1.00"),  # 0.9995
        ("vision", H100, "2.00"),  # 1.999
    ]
    assert issued.total == Decimal("3.60")
    assert issued.tax == issued.fee == 0


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step % 12 == 7 else pytest.mark.nightly)
        for step in range(1, 60, 2)
    ],
)
def test_a_closing_that_was_killed_ends_with_the_same_documents(
    sessions: SessionFactory,
    session: Session,
    engine: Engine,
    month: Contract,
    step: int,
) -> None:
    record_until(session, APRIL)
    session.commit()
    accrue_all(sessions)
    with killed_at(engine, step):
        try:
            close_months(sessions, ISSUING, now=DUE)
        except KilledError:
            engine.dispose()
    # A correction comes between: of a sealed closing it waits for the next month.
    add_use(session, month.customer_id, MARCH, -6_000, contract=month)
    session.commit()
    accrue_all(sessions)
    close_months(sessions, ISSUING, now=DUE)
    close(sessions, month_end=MAY)
    numbers = session.scalars(select(BillingDocument.number).order_by(BillingDocument.number))
    assert [number for number in numbers if number.startswith("INV")] in (
        ["INV-2026-00001"],
        ["INV-2026-00001", "INV-2026-00002"],
    )
    documents = session.scalars(select(BillingDocument)).all()
    by_kind = {
        kind: sum(row.net for row in documents if row.kind is kind)
        for kind in (DocumentKind.INVOICE, DocumentKind.STATEMENT)
    }
    exact = sum((line.amount for line in lines(session)), Decimal(0))
    assert by_kind[DocumentKind.INVOICE] == by_kind[DocumentKind.STATEMENT]
    assert abs(by_kind[DocumentKind.INVOICE] - cents(exact)) <= Decimal("0.02")
    assert session.query(ClosedLine).count() == session.query(BillingLine).count()
    assert replay_documents(sessions, since=MARCH, until=MAY)[1] == []

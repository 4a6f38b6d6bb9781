"""The export in the columns of FOCUS adds up to invoices, and says what each row is."""

import csv
import io
from collections import defaultdict
from decimal import Decimal

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.usage.measuring import Period
from marketplace.charges.models import LineKind
from marketplace.charges.service import add_line
from marketplace.invoices.focus import COLUMNS, focus_csv
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.models import Contract
from tenants.models import User
from tests.cast import Cast, scope_of
from tests.unit.marketplace.ledger import (
    APRIL,
    GPU_HOUR,
    HOUR,
    MARCH,
    MAY,
    add_contract,
    add_use,
    terms,
)
from tests.unit.marketplace.months import close

YEAR = Period(MARCH, MAY)


@pytest.fixture
def contract(sessions: SessionFactory, session: Session, cast: Cast) -> Contract:
    """Two months with every kind of line, a late correction among them."""
    first = terms("2.45", discount_percent=Decimal(10), region="eu-north", commitment_gpu_hours=10)
    contract = add_contract(session, cast, first)
    add_use(session, cast.acme.id, MARCH, contract=contract, job_name="=1+1")
    add_use(session, cast.acme.id, MARCH + HOUR, GPU_HOUR // 3, contract=contract)
    for kind, source_id, amount in (
        (LineKind.SERVICE_CREDIT, "breach", "-0.505"),
        (LineKind.CORRECTION, "T-1", "-1.00"),
    ):
        add_line(
            session,
            kind=kind,
            tenant_id=cast.acme.id,
            provider_id=cast.globex.id,
            contract_id=contract.id,
            at=MARCH,
            amount=Decimal(amount),
            source_id=source_id,
            note="slow network",
            now=MARCH,
        )
    session.commit()
    close(sessions)
    add_use(session, cast.acme.id, MARCH, -GPU_HOUR // 2, contract=contract)
    add_use(session, cast.acme.id, APRIL, contract=contract)
    session.commit()
    close(sessions, month_end=MAY)
    return contract


def export(sessions: SessionFactory, user: User, period: Period = YEAR) -> list[dict[str, str]]:
    text = "".join(focus_csv(sessions, scope_of(user), period, currency="EUR", issuer="Vedette AS"))
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.usefixtures("contract")
def test_the_rows_of_a_billing_period_add_up_to_its_invoice(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in export(sessions, cast.alice):
        sums[row["BillingPeriodStart"][:7]] += Decimal(row["BilledCost"])
    invoices = select(BillingDocument).where(BillingDocument.kind == DocumentKind.INVOICE)
    assert sums == {f"{row.month_at:%Y-%m}": row.total for row in session.scalars(invoices)}


@pytest.mark.usefixtures("contract")
def test_exports_of_parts_of_a_month_add_up_to_that_of_the_whole(
    sessions: SessionFactory, cast: Cast
) -> None:
    middle = MARCH + 24 * HOUR
    parts = (Period(MARCH, middle), Period(middle, MAY))
    rows = [row for part in parts for row in export(sessions, cast.alice, part)]
    whole = export(sessions, cast.alice)
    assert sorted(map(repr, rows)) == sorted(map(repr, whole))


def test_a_row_says_what_was_used_and_what_it_cost(
    sessions: SessionFactory, cast: Cast, contract: Contract
) -> None:
    rows = export(sessions, cast.alice)
    assert rows[0].keys() == set(COLUMNS)
    usage = [row for row in rows if row["ChargePeriodStart"] == "2026-03-01T01:00:00Z"]
    [charge] = [row for row in usage if row["ChargeCategory"] == "Usage"]
    shown = {
        "BilledCost": "0.81666667",
        "BillingAccountName": "Acme",
        "BillingCurrency": "EUR",
        "BillingPeriodStart": "2026-03-01T00:00:00Z",
        "BillingPeriodEnd": "2026-04-01T00:00:00Z",
        "ChargePeriodEnd": "2026-03-01T02:00:00Z",
        "ContractedUnitPrice": "2.45",
        "ListUnitPrice": "2.45",
        "PricingUnit": "GPU-Hours",
        "ProviderName": "Globex",
        "InvoiceIssuerName": "Vedette AS",
        "RegionId": "eu-north",
        "ResourceName": "train",
        "SkuPriceId": f"{contract.id}:1",
    }
    assert {name: charge[name] for name in shown} == shown
    corrections = {row["BillingPeriodStart"][:7] for row in rows if row["ChargeClass"]}
    assert corrections == {"2026-04"}
    assert {row["ChargeCategory"] for row in rows} == {
        *("Usage", "Credit", "Purchase", "Adjustment", "Tax")
    }


def test_a_formula_of_a_provider_is_guarded(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    formula = '=HYPERLINK("https://globex.example")'
    contract = add_contract(session, cast, terms("1", region="@SUM(1)"))
    contract.provider_name = formula
    add_use(session, cast.acme.id, MARCH, contract=contract, gpu_model="+1")
    session.commit()
    close(sessions)
    usage = export(sessions, cast.alice)[0]
    assert {usage["ProviderName"], usage["PublisherName"]} == {f"'{formula}"}
    assert (usage["RegionId"], usage["RegionName"], usage["SkuId"]) == (
        "'@SUM(1)",
        "'@SUM(1)",
        "'+1",
    )


@pytest.mark.usefixtures("contract")
def test_a_formula_in_a_name_is_guarded_and_another_tenant_sees_nothing(
    sessions: SessionFactory, cast: Cast
) -> None:
    assert "'=1+1" in {row["ResourceName"] for row in export(sessions, cast.alice)}
    assert export(sessions, cast.charlie) == []
    assert len(export(sessions, cast.olivia)) == len(export(sessions, cast.alice))

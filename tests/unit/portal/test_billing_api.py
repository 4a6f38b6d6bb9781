"""The REST resources of billing: prices, invoices as JSON, PDF and CSV, lines, credit."""

import csv
import io
from datetime import datetime

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from marketplace.charges.models import BillingLine
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.models import Contract
from tests.cast import Cast, FrozenClock
from tests.unit.marketplace.ledger import APRIL, H100, MARCH, add_contract, add_use, terms
from tests.unit.marketplace.months import close
from tests.unit.portal.conftest import Browser

PERIOD = "since=2026-03-01T00:00:00Z&until=2026-04-01T00:00:00Z"


@pytest.fixture
def contract(sessions: SessionFactory, cast: Cast) -> Contract:
    """Acme has rented an H100 of Globex for an hour of March, which is closed."""
    with sessions.begin() as session:
        contract = add_contract(session, cast, terms("2.45"), name="H100 in Ås")
        add_use(session, cast.acme.id, MARCH, contract=contract, job_name="secret-job")
    close(sessions)
    return contract


def ident(sessions: SessionFactory, kind: DocumentKind) -> str:
    with sessions() as session:
        return session.scalars(select(BillingDocument.id).where(BillingDocument.kind == kind)).one()


@pytest.mark.usefixtures("contract")
def test_both_sides_see_their_document_of_the_same_amount(
    sessions: SessionFactory, alice: Browser, charlie: Browser, olivia: Browser
) -> None:
    [invoice] = alice.get("/api/v1/billing/documents?month=2026-03").get_json()["items"]
    [statement] = charlie.get("/api/v1/billing/documents").get_json()["items"]
    assert (invoice["kind"], invoice["net"], invoice["total"]) == ("invoice", "2.45", "3.06")
    assert (statement["kind"], statement["net"]) == ("statement", "2.45")
    assert (statement["fee"], statement["total"]) == ("0.25", "2.20")
    assert olivia.get("/api/v1/billing/documents").get_json()["total"] == 2
    assert alice.get("/api/v1/billing/documents?month=2026-04").get_json()["total"] == 0
    whole = alice.get(f"/api/v1/billing/documents/{invoice['id']}").get_json()
    assert whole["items"][0]["gpu_hours"] == "1"
    foreign = ident(sessions, DocumentKind.STATEMENT)
    for path in ("", "/pdf", "/csv"):
        assert alice.get(f"/api/v1/billing/documents/{foreign}{path}").status_code == 404


@pytest.mark.usefixtures("contract")
def test_an_invoice_is_a_pdf_and_a_csv(sessions: SessionFactory, alice: Browser) -> None:
    path = f"/api/v1/billing/documents/{ident(sessions, DocumentKind.INVOICE)}"
    answer = alice.get(f"{path}/pdf")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="INV-2026-00001.pdf"'
    assert answer.data.startswith(b"%PDF")
    assert answer.data.count(b"/Type /Page\n") == 1
    assert alice.get(f"{path}/pdf").data == answer.data
    [row] = csv.DictReader(io.StringIO(alice.get(f"{path}/csv").text))
    shown = (row["document"], row["number"], row["gpu_model"], row["unit_price"], row["amount"])
    assert shown == ("INV-2026-00001", "1", H100, "2.45000000", "2.45")


def test_each_side_sees_of_lines_what_is_its_own(
    alice: Browser, charlie: Browser, bob: Browser, contract: Contract
) -> None:
    paid = f"/api/v1/billing/lines?{PERIOD}"
    [line] = alice.get(paid).get_json()["items"]
    assert (line["amount"], line["job_name"], line["appliance_id"]) == (
        "2.45000000",
        "secret-job",
        None,
    )
    assert charlie.get(paid).get_json()["total"] == 0
    [earned] = charlie.get(f"{paid}&side=earned").get_json()["items"]
    assert (earned["job_name"], earned["job_id"], earned["user_id"]) == ("", None, None)
    assert earned["contract_id"] == contract.id
    assert earned["appliance_id"]
    exported = charlie.get(f"/api/v1/billing/lines/export?{PERIOD}&side=earned").text
    assert "secret-job" not in exported
    assert "secret-job" in alice.get(f"/api/v1/billing/lines/export?{PERIOD}").text
    assert alice.get(f"/api/v1/billing/focus?{PERIOD}").text.startswith("AvailabilityZone,")
    assert bob.get(paid).status_code == 403


def test_an_operator_corrects_a_contract_once(
    sessions: SessionFactory, olivia: Browser, alice: Browser, contract: Contract
) -> None:
    body = {"amount": "-1.25", "note": "slow", "reference": "T-1", "contract_id": contract.id}
    made = olivia.call("POST", "/api/v1/billing/corrections", body)
    assert made.status_code == 201
    assert made.get_json()["amount"] == "-1.25"
    assert olivia.call("POST", "/api/v1/billing/corrections", body).status_code == 409
    assert alice.call("POST", "/api/v1/billing/corrections", body).status_code == 403
    with sessions() as session:
        [line] = session.scalars(select(BillingLine).where(BillingLine.note == "slow"))
    assert line.created_by == "olivia@vedette.example"
    # What was issued has not changed; the next month has it.
    assert [month.month for month in close(sessions, month_end=_may())] == [4]
    latest = alice.get("/api/v1/billing/documents").get_json()["items"][0]
    assert (latest["title"], latest["net"]) == ("Credit note", "-1.25")


@pytest.mark.usefixtures("cast")
def test_a_wrong_correction_names_the_field(olivia: Browser) -> None:
    for changes, field in (
        ({"amount": "0"}, "amount"),
        ({"amount": "1.001"}, "amount"),
        ({"amount": "1e999999"}, "amount"),
        ({"amount": "NaN"}, "amount"),
        ({"note": " "}, "note"),
        ({"reference": "x" * 61}, "reference"),
        ({"tenant_id": "x"}, "contract_id"),
        ({"at": "2126-01-01T00:00:00Z"}, "at"),
        # Every month from the first line on is closed.
        ({"at": "0226-01-01T00:00:00Z"}, "at"),
    ):
        body = {"amount": "1.00", "note": "x", "reference": "x", "contract_id": "x", **changes}
        answer = olivia.call("POST", "/api/v1/billing/corrections", body)
        assert answer.status_code == 422
        assert field in answer.get_json()["errors"]


def test_prepaid_credit_is_entered_and_shown(
    olivia: Browser, alice: Browser, charlie: Browser, cast: Cast, sessions: SessionFactory
) -> None:
    body = {"tenant_id": cast.acme.id, "amount": "100.00", "reference": "bank 1"}
    assert olivia.call("POST", "/api/v1/billing/credit", body).status_code == 201
    assert olivia.call("POST", "/api/v1/billing/credit", body).status_code == 409
    assert alice.call("POST", "/api/v1/billing/credit", body).status_code == 403
    with sessions.begin() as session:
        contract = add_contract(session, cast, terms("2.45"))
        add_use(session, cast.acme.id, APRIL, contract=contract)
    credit = alice.get("/api/v1/billing/credit").get_json()
    assert (credit["balance"], credit["available"]) == ("100.00", "100.00")
    assert credit["entries"][0]["created_by"] == "olivia@vedette.example"
    assert charlie.get(f"/api/v1/billing/credit?tenant_id={cast.acme.id}").status_code == 404
    assert olivia.get("/api/v1/billing/credit").status_code == 422


def test_prices_are_listed_added_and_deleted(
    alice: Browser, charlie: Browser, clock: FrozenClock
) -> None:
    made = alice.call(
        "POST",
        "/api/v1/billing/price-lists",
        json={"prices": [{"gpu_model": "H100", "price": "2.45"}], "valid_from": None},
    )
    assert made.status_code == 201
    assert datetime.fromisoformat(made.get_json()["valid_from"]) > clock.now
    path = f"/api/v1/billing/price-lists/{made.get_json()['id']}"
    assert charlie.get(path).status_code == 404
    assert alice.call("DELETE", path).status_code == 204
    assert alice.get("/api/v1/billing/price-lists").get_json()["total"] == 0


def _may() -> datetime:
    return APRIL.replace(month=5)

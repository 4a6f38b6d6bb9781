"""Pages of invoices and price lists."""

from tests.cast import NOON, Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World


def test_an_invoice_is_listed_shown_and_downloaded(alice: Browser, world: World) -> None:
    path = f"/billing/documents/{world.ids['document_id']}"
    assert f'href="{path}"' in alice.get("/billing/documents").text
    assert "None of this kind" in alice.get("/billing/documents?kind=statement").text
    text = alice.get(path).text
    assert "Total" in text
    pdf = alice.get(f"{path}/pdf")
    assert (pdf.content_type, pdf.data[:5]) == ("application/pdf", b"%PDF-")
    assert alice.get(f"{path}/csv").text.startswith("document,currency,number,")


def test_a_tenant_without_documents_is_told_when_they_come(charlie: Browser) -> None:
    assert "Nothing was issued yet" in charlie.get("/billing/documents").text


def test_invoices_are_for_those_who_may_see_costs(bob: Browser, world: World) -> None:
    assert bob.get("/billing/documents").status_code == 403
    assert bob.get(f"/billing/documents/{world.ids['document_id']}/pdf").status_code == 403


def test_a_price_list_is_added_and_deleted_before_it_begins(charlie: Browser) -> None:
    assert "No price lists" in charlie.get("/billing/prices").text
    # In the time zone of the user, UTC.
    prices = {"prices": "H100 = 2.45\n* = 0.8", "valid_from": "2026-03-02T14:00"}
    assert charlie.post("/billing/prices", prices).status_code == 302
    text = charlie.get("/billing/prices").text
    assert "EUR 2.45" in text
    assert "all others" in text
    listed = charlie.call("GET", "/api/v1/billing/price-lists").json
    assert listed is not None
    path = f"/billing/prices/{listed['items'][0]['id']}/delete"
    assert charlie.post(path).status_code == 302
    assert "No price lists" in charlie.get("/billing/prices").text


def test_a_wrong_price_list_is_shown_again_with_its_errors(charlie: Browser) -> None:
    for prices, problem in {
        "H100": "Expected MODEL=PRICE",
        "H100=x": "is no amount",
        "H100=1\nH100=2": "has two prices",
        "": "Enter at least one price",
    }.items():
        answer = charlie.post("/billing/prices", {"prices": prices})
        assert (answer.status_code, problem in answer.text) == (422, True), prices


def test_what_applies_is_marked_and_stays(charlie: Browser, clock: FrozenClock, cast: Cast) -> None:
    assert charlie.post("/billing/prices", {"prices": "*=1"}).status_code == 302
    assert ">now<" not in charlie.get("/billing/prices").text
    clock.advance(3600)
    assert clock.now > NOON
    text = charlie.get("/billing/prices").text
    assert ">now<" in text
    assert "Delete Price list" not in text
    assert cast.charlie.email in text

"""Tickets on pages and by REST, as all sides of them see them."""

import base64
import io
from typing import Any

from tests.cast import Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.market import Market

API = "/api/v1/tickets"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 50


def call(browser: Browser, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
    """Call the API; return the JSON of its answer."""
    answer = browser.call(method, f"{API}{path}", body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.get_json()


def refused(browser: Browser, path: str, body: object) -> tuple[int, str]:
    """Return status and message of a POST that is refused."""
    answer = browser.call("POST", f"{API}{path}", body)
    return answer.status_code, answer.get_json()["message"]


def about_contract(market: Market, **changes: object) -> dict[str, object]:
    return {
        "title": "Jobs stop",
        "text": "After a minute.",
        "subject_kind": "contract",
        "subject_id": market.contract.id,
        **changes,
    }


class TestByREST:
    def test_a_ticket_from_its_beginning_to_its_rating(
        self, charlie: Browser, alice: Browser, market: Market
    ) -> None:
        file = {"name": "gpu.png", "content": base64.b64encode(PNG).decode()}
        ticket = call(charlie, "POST", "", about_contract(market, files=[file]))
        assert (ticket["state"], ticket["side"], ticket["awaited"]) == (
            *("open", "customer", "provider"),
        )
        path = f"/{ticket['id']}"
        seen = call(alice, "GET", path)
        assert seen["author_name"] == market.contract.customer_name
        assert call(alice, "GET", "?needs_answer=true")["total"] == 1
        assert call(charlie, "GET", "?needs_answer=true")["total"] == 0
        entry = call(alice, "GET", f"{path}/entries")["items"][0]
        assert (entry["text"], entry["author_name"]) == ("After a minute.", seen["author_name"])
        (attachment,) = entry["attachments"]
        assert (attachment["media_type"], attachment["size_bytes"]) == ("image/png", len(PNG))
        downloaded = alice.get(f"{API}{path}/attachments/{attachment['id']}")
        assert downloaded.data == PNG
        assert downloaded.mimetype == "application/octet-stream"
        assert downloaded.headers["Content-Disposition"].startswith("attachment;")
        answered = call(alice, "POST", f"{path}/messages", {"text": "Fixed."})
        assert (answered["state"], answered["awaited"]) == ("waiting_for_customer", "customer")
        assert answered["first_response_seconds"] == 0
        events = call(alice, "GET", f"{path}/subject-events")["items"]
        assert "Version 1 applies" in {event["text"] for event in events}
        assert call(charlie, "POST", f"{path}/solve")["state"] == "solved"
        rated = call(charlie, "POST", f"{path}/rate", {"rating": 5, "comment": "Fast."})
        assert (rated["rating"], rated["rating_comment"]) == (5, "Fast.")
        assert call(charlie, "POST", f"{path}/reopen")["state"] == "waiting_for_provider"
        call(charlie, "POST", f"{path}/solve")
        assert call(charlie, "POST", f"{path}/close")["state"] == "closed"
        assert refused(alice, f"{path}/messages", {"text": "x"})[0] == 409

    def test_assignees_and_the_operator(
        self, charlie: Browser, alice: Browser, bob: Browser, olivia: Browser, market: Market
    ) -> None:
        ticket = call(charlie, "POST", "", about_contract(market))
        path = f"/{ticket['id']}"
        assert bob.get(f"{API}{path}").status_code == 404
        assigned = call(alice, "POST", f"{path}/assign", {"user": "bob@acme.example"})
        assert assigned["assignee"] == "bob@acme.example"
        assert call(charlie, "GET", path)["assignee"] == ""
        assert call(bob, "GET", path)["id"] == ticket["id"]
        assert olivia.get(f"{API}{path}").status_code == 404
        call(charlie, "POST", f"{path}/call-operator")
        shown = call(olivia, "GET", path)
        assert (shown["side"], shown["author_name"]) == ("operator", "charlie@globex.example")

    def test_invalid_tickets_are_refused(self, charlie: Browser, market: Market) -> None:
        for changes, problem in (
            ({"title": ""}, "The title is empty"),
            ({"subject_id": "x"}, "There is no contract 'x' here"),
            ({"recipient": "bob"}, "recipient"),
            ({"subject_kind": "moon"}, "Must be one of"),
            ({"files": [{"name": "x", "content": "%%"}]}, "not in base64"),
            ({"files": [{"name": "x"}]}, "Missing data"),
            ({"tenant_id": "x"}, "Only an operator names the tenant"),
        ):
            answer = charlie.call("POST", API, about_contract(market, **changes))
            assert answer.status_code == 422
            assert problem in answer.text


class TestOnPages:
    def test_a_thread_with_files_notes_and_a_rating(
        self, charlie: Browser, alice: Browser, market: Market
    ) -> None:
        contract = charlie.get(f"/contracts/{market.contract.id}").text
        assert f"subject_id={market.contract.id}" in contract
        page = charlie.get(f"/tickets/new?subject_kind=contract&subject_id={market.contract.id}")
        assert market.contract.id in page.text
        form: dict[str, object] = about_contract(
            market, text="See <b>http://x.example</b>", recipient=""
        )
        form["files"] = (io.BytesIO(b"<script>"), "a.html")
        opened = charlie.post("/tickets/new", form)
        path = opened.headers["Location"]
        shown = alice.get(path).text
        assert "See &lt;b&gt;" in shown
        assert "charlie@globex.example" not in shown
        assert "a.html" in shown
        assert "waiting for you" in shown
        alice.post(path, {"text": "Only for us", "is_internal": "y"})
        assert "Only for us" in alice.get(path).text
        assert "Only for us" not in charlie.get(path).text
        assert alice.post(path, {"text": ""}).status_code == 422
        alice.post(path, {"text": "It works now."})
        assert "Message sent" in alice.get(path).text
        charlie.post(f"{path}/solve")
        assert "Rate the support" in charlie.get(path).text
        assert charlie.post(f"{path}/rate", {"rating": "9"}).status_code == 422
        charlie.post(f"{path}/rate", {"rating": "4", "comment": "Good."})
        assert "Change rating" in charlie.get(path).text
        assert "Rating of the customer" in alice.get(path).text

    def test_lists_and_empty_lists(self, alice: Browser, bob: Browser, olivia: Browser) -> None:
        for view in ("waiting", "active", "late", "over", "x"):
            assert alice.get(f"/tickets?view={view}").status_code == 200
        assert "No tickets found" in alice.get("/tickets?search=x").text
        opened = bob.post(
            "/tickets/new", {"title": "Help", "text": "x", "subject_kind": "other", "recipient": ""}
        )
        path = opened.headers["Location"]
        assert "Help" in alice.get("/tickets").text
        assert "Help" in olivia.get("/tickets?view=waiting").text
        assert olivia.get(path).status_code == 200
        olivia.post(f"{path}/assign", {"user": ""})
        assert "This page is empty" in alice.get("/tickets?page=9").text

    def test_an_operator_writes_to_a_tenant(
        self, olivia: Browser, bob: Browser, alice: Browser, cast: Cast
    ) -> None:
        form = {"title": "Your GPUs", "text": "Please update.", "subject_kind": "other"}
        assert olivia.post("/tickets/new", {**form, "tenant_id": ""}).status_code == 422
        opened = olivia.post("/tickets/new", {**form, "tenant_id": cast.acme.id})
        assert alice.get(opened.headers["Location"]).status_code == 200
        assert bob.get(opened.headers["Location"]).status_code == 404

    def test_a_provider_answers_before_it_may_solve(
        self, charlie: Browser, alice: Browser, market: Market
    ) -> None:
        form = about_contract(market, recipient="provider")
        path = charlie.post("/tickets/new", form).headers["Location"]
        assert "Mark as solved" in charlie.get(path).text
        assert "Mark as solved" not in alice.get(path).text
        alice.post(f"{path}/solve")
        assert "Answer the ticket first" in alice.get(path).text
        alice.post(path, {"text": "It is fixed."})
        assert "Mark as solved" in alice.get(path).text

    def test_a_third_tenant_sees_nothing(
        self, charlie: Browser, bob: Browser, market: Market
    ) -> None:
        form = about_contract(market, recipient="")
        path = charlie.post("/tickets/new", form).headers["Location"]
        assert bob.get(path).status_code == 404
        assert bob.post(f"{path}/solve").status_code == 404
        assert "Jobs stop" not in bob.get("/tickets").text

"""Pages and operations of costs and budgets, and costs on other pages."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

import marketplace.costs.unbilled
from core.db import SessionFactory
from jobqueue.projects.service import ProjectRequest, create_project
from marketplace.budgets.evaluation import evaluate_budgets
from marketplace.budgets.models import Budget, BudgetAction
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.statements import counted_statements
from tests.unit.jobqueue.builders import add_appliance, start, submit
from tests.unit.marketplace.cost_builders import MARCH, add_budget, add_line
from tests.unit.portal.conftest import Browser
from tests.unit.portal.test_job_pages import FORM

SPENT = "The budget of Acme for March 2026 is spent."


@pytest.fixture(autouse=True)
def own_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an H100 cost 2.50 an hour."""

    def price_of(_session: Session, _tenant: str, model: str, _at: object) -> Decimal | None:
        return Decimal("2.50") if "H100" in model else None

    monkeypatch.setattr(marketplace.costs.unbilled, "price_of", price_of)


def test_the_costs_of_a_month_are_shown_by_project_user_model_and_contract(
    sessions: SessionFactory, cast: Cast, alice: Browser, charlie: Browser
) -> None:
    assert "No costs in March 2026" in alice.get("/billing").text
    with sessions.begin() as session:
        vision = create_project(
            session, scope_of(cast.alice), ProjectRequest(name="vision"), now=NOON
        )
        add_line(session, cast.acme, "1240.5", project_id=vision.id, user_id=cast.bob.id)
        add_line(session, cast.acme, "77", at=MARCH - timedelta(days=1))
        for number in range(12):
            add_line(session, cast.acme, "0.01", gpu_model=f"Model {number}")
    text = alice.get("/billing").text
    for shown in ("EUR 1,240.62", "EUR 77.00", "vision", "bob@acme.example", "3 more", "EUR 0.03"):
        assert shown in text, shown
    assert "EUR 77.00" in alice.get("/billing?month=2026-02").text
    assert "EUR" not in charlie.get("/billing").text.partition("Last months")[2]
    csv = alice.get("/billing/export?month=2026-03&by=user").text.splitlines()
    assert csv == [
        "user,name,amount,currency",
        f"{cast.bob.id},bob@acme.example,1240.50,EUR",
        ",No user,0.12,EUR",
    ]


def test_a_month_that_is_none_is_refused(alice: Browser) -> None:
    for month in (
        "2026-13",
        "x",
        "0001-01",
        "9999-12",
        "99999-01",
    ):
        assert alice.get(f"/billing?month={month}").status_code == 422
        assert alice.get(f"/billing/export?month={month}").status_code == 422


def test_members_see_no_costs_of_the_tenant(bob: Browser) -> None:
    for path in ("/billing", "/billing/export", "/billing/budgets", "/api/v1/billing/costs"):
        assert bob.get(path).status_code == 403
    assert "/billing" not in bob.get("/jobs").text


def test_operators_see_the_costs_of_tenants(
    sessions: SessionFactory, cast: Cast, olivia: Browser
) -> None:
    with sessions.begin() as session:
        add_line(session, cast.acme, "7")
        add_budget(session, cast.alice, "10")
    assert "Acme" in olivia.get("/billing").text
    assert "tenant of Acme" in olivia.get("/billing/budgets").text
    assert olivia.post("/billing/budgets", {"amount": "1"}).status_code == 403


def test_budgets_are_added_changed_and_deleted_on_their_page(
    sessions: SessionFactory, alice: Browser
) -> None:
    form = {
        "for_whom": "tenant:",
        "amount": "1000",
        "action": "stop_jobs",
        "grace_seconds": "2h",
        "notify": "email",
    }
    assert "No budgets" in alice.get("/billing/budgets").text
    refused = alice.post("/billing/budgets", form | {"amount": "much", "for_whom": "project:x"})
    assert (refused.status_code, "Not a valid choice" in refused.text) == (422, True)
    refused = alice.post("/billing/budgets", form | {"amount": "much"})
    assert "enter digits such as 2.45" in refused.text
    assert alice.post("/billing/budgets", form).status_code == 302
    assert "has a budget already" in alice.post("/billing/budgets", form).text
    with sessions() as session:
        budget = session.scalars(select(Budget)).one()
    path = f"/billing/budgets/{budget.id}"
    assert 'value="1000.00"' in alice.get(path).text
    assert alice.post(path, form | {"amount": "1200.50"}).status_code == 302
    text = alice.get("/billing/budgets").text
    assert "of EUR 1,200.50" in text
    assert "Stop jobs after 2h" in text
    assert alice.post(f"{path}/delete").status_code == 302
    assert "No budgets" in alice.get("/billing/budgets").text


def test_budgets_are_managed_by_the_api(
    sessions: SessionFactory, cast: Cast, alice: Browser, bob: Browser
) -> None:
    body = {"target": "user", "target_id": "bob@acme.example", "amount": "12.5"}
    made = alice.call("POST", "/api/v1/billing/budgets", body)
    assert made.status_code == 201
    budget = made.get_json()
    assert (budget["amount"], budget["target_name"]) == ("12.50", "bob@acme.example")
    path = f"/api/v1/billing/budgets/{budget['id']}"
    changed = alice.call("PATCH", path, {"action": "stop_new_jobs"}).get_json()
    assert (changed["amount"], changed["action"]) == ("12.50", "stop_new_jobs")
    assert bob.call("PATCH", path, {"amount": "99"}).status_code == 403
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        add_line(session, cast.acme, "12.5", user_id=cast.bob.id)
        evaluate_budgets(session, cast.acme.id, now=NOON)
    shown = alice.get(path).get_json()
    assert (shown["spent"], shown["percent"], shown["level_percent"]) == ("12.50", 100.0, 100)
    job = {"name": "x", "image": "x/y:1", "gpus": 1}
    refused = bob.call("POST", "/api/v1/jobs", job)
    assert (refused.status_code, refused.get_json()["code"]) == (409, "budget_spent")
    assert alice.call("POST", "/api/v1/jobs", job).status_code == 201
    page = bob.post("/jobs/new", FORM)
    assert "The budget of the user bob@acme.example for March 2026 is spent." in page.text
    assert alice.call("DELETE", path).status_code == 204
    assert bob.call("POST", "/api/v1/jobs", job).status_code == 201


def test_costs_come_by_the_api_in_pages(
    sessions: SessionFactory, cast: Cast, alice: Browser
) -> None:
    with sessions.begin() as session:
        add_line(session, cast.acme, "2", gpu_model="A100")
        add_line(session, cast.acme, "0.00000001", gpu_model="H100")
    path = "/api/v1/billing/costs?by=gpu_model&page_size=1"
    answer = alice.get(path).get_json()
    assert answer["items"] == [{"key": "A100", "name": "A100", "amount": "2.00"}]
    assert (answer["total"], answer["sum"], answer["currency"]) == (2, "2.00000001", "EUR")
    assert (answer["since"], answer["until"]) == (
        "2026-03-01T00:00:00+00:00",
        "2026-04-01T00:00:00+00:00",
    )
    since = "2020-01-01T00:00:00Z"
    assert alice.get(f"{path}&since={since}&until=2030-01-01T00:00:00Z").status_code == 422
    assert alice.get(f"{path}&since={since}&until={since}").status_code == 422


def test_an_estimate_comes_while_a_job_is_entered_and_by_the_api(
    sessions: SessionFactory, cast: Cast, bob: Browser
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
    form = {
        "gpu_choice": "whole",
        "gpus": "4",
        "cpus": "1",
        "memory": "1 GiB",
        "kind": "batch",
        "nodes": "2",
        "container_policy": "restricted",
    }
    answer = bob.post("/jobs/new/fit", form).get_json()
    assert answer["cost"] == "About EUR 20.00 an hour on own appliances."
    assert bob.post("/jobs/new/fit", form | {"gpus": "0"}).get_json()["cost"] == ""
    half = form | {"gpu_choice": "part", "gpu_compute": "0.5", "nodes": "1"}
    assert bob.post("/jobs/new/fit", half).get_json()["cost"].startswith("About EUR ")
    shown = bob.get("/api/v1/billing/costs/estimate?gpus=0.5&gpu_models=H100").get_json()
    assert (shown["lowest"], shown["rented"], shown["currency"]) == ("1.25", None, "EUR")
    for bad in ("gpus=-1", "gpus=nan", "gpus=1&max_gpu_hour_price=x", ""):
        assert bob.get(f"/api/v1/billing/costs/estimate?{bad}").status_code == 422


def test_a_job_shows_what_it_costs_and_gpu_usage_what_groups_do(
    sessions: SessionFactory, cast: Cast, clock: FrozenClock, alice: Browser, bob: Browser
) -> None:
    assert "before taxes" not in alice.get("/gpu-usage").text
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=2)
        add_line(session, cast.acme, "3.20", NOON - timedelta(hours=1), user_id=cast.alice.id)
        add_line(session, cast.acme, "1.10", NOON, job_id=attempt.job_id)
        job_id = attempt.job_id
    clock.advance(360)
    assert "EUR 1.60 so far, EUR 5.00 an hour" in bob.get(f"/jobs/{job_id}").text
    text = alice.get("/gpu-usage?since=2026-03-01&until=2026-03-03&by=job").text
    assert "EUR 4.80" in text
    assert "EUR 1.60" in text
    assert "EUR" not in bob.get("/gpu-usage?since=2026-03-01&until=2026-03-03").text
    query = "since=2026-03-01&until=2026-03-03&by=user"
    header = alice.get(f"/gpu-usage/export?{query}").text.splitlines()[0]
    assert header.endswith(",energy_kilowatt_hours,cost")
    assert "cost" not in bob.get(f"/gpu-usage/export?{query}").text


def test_a_hold_shows_on_the_page_of_budgets(
    sessions: SessionFactory, cast: Cast, alice: Browser
) -> None:
    with sessions.begin() as session:
        add_budget(session, cast.alice, "10", action=BudgetAction.STOP_NEW_JOBS)
        add_line(session, cast.acme, "11")
        evaluate_budgets(session, cast.acme.id, now=NOON)
    text = alice.get("/billing/budgets").text
    assert "110 % of EUR 10.00" in text
    assert "holds jobs since" in text


def test_the_list_of_jobs_has_costs_where_some_have_a_price(
    *, engine: Engine, sessions: SessionFactory, cast: Cast, bob: Browser
) -> None:
    with sessions.begin() as session:
        first = start(session, cast, name="first", gpus=1)
        submit(session, cast.alice, name="second")
    assert "Cost</th>" not in bob.get("/jobs").text
    with sessions.begin() as session:
        for amount in ("7.5", "-0.25"):
            add_line(session, cast.acme, amount, job_id=first.job_id)
        add_line(session, cast.globex, "99", job_id=first.job_id)
    with counted_statements(engine) as statements:
        text = bob.get("/jobs").text
    shown = re.findall(r'data-label="Cost"[^>]*>(?:<span[^>]*>)?([^<]+)', text)
    assert shown == ["\N{EN DASH}", "EUR 7.25"]
    assert sum("billing_lines" in statement for statement in statements) == 1

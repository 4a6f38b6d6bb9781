"""Lists honor the sort parameter, and pages never overlap."""

import re
from datetime import timedelta

import pytest
from flask import Flask

from core.db import SessionFactory
from jobqueue.queue.service import submit_job
from protocol.job_spec import JobRequest
from tests.cast import BOX, Cast, FrozenClock, scope_of
from tests.unit.portal.conftest import Browser


@pytest.fixture(autouse=True)
def jobs(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> None:
    with sessions.begin() as session:
        for number, name in enumerate(("b", "a", "b", "c")):
            request = JobRequest(name=name, image=f"acme/x:{number}")
            at = clock.now + timedelta(seconds=number)
            submit_job(session, scope_of(cast.bob), request, box=BOX, now=at)


def images(browser: Browser, query: str) -> str:
    answer = browser.get(f"/api/v1/jobs?{query}").json
    assert answer is not None
    return "".join(job["image"][-1] for job in answer["items"])


def test_lists_are_sorted_newest_first_by_default(bob: Browser) -> None:
    assert images(bob, "") == "3210"


def test_a_leading_hyphen_sorts_in_descending_order(bob: Browser) -> None:
    for sort, expected in (
        ("name", "1023"),
        ("-name", "3201"),
        ("name,-submitted_at", "1203"),
        ("-name,submitted_at", "3021"),
    ):
        assert images(bob, f"sort={sort}") == expected


def test_pages_of_equal_values_do_not_overlap(bob: Browser) -> None:
    names, query = "", ""
    for _ in range(4):
        page = bob.get(f"/api/v1/jobs?sort=gpus&page_size=1{query}").get_json()
        names += page["items"][0]["image"][-1]
        query = f"&after={page['next']}"
    assert (sorted(names), page["next"]) == (["0", "1", "2", "3"], None)


def test_every_list_can_be_sorted(alice: Browser) -> None:
    for path in (
        "alerts?sort=-severity,fired_at",
        "appliances?sort=-last_seen_at,site",
        "certificates?sort=-not_after",
        "enrollment-tokens?sort=site",
        "invitations?sort=email",
        "notifications?sort=-sent_at",
        "receivers?sort=kind,-name",
        "rules?sort=measurement",
        "sessions?sort=created_at",
        "tenants?sort=-slug",
        "tokens?sort=-last_used_at",
        "users?sort=role,-email",
    ):
        assert alice.get(f"/api/v1/{path}").status_code == 200


# Lists that have one order: they come whole, or are read along a chain.
UNSORTED = {
    "/api/v1/tickets/{ticket_id}/entries": "a thread, the oldest first",
    "/api/v1/tickets/{ticket_id}/subject-events": "a history, the newest first",
    "/api/v1/billing/price-lists": "versions, the newest first",
    "/api/v1/fleet-advice/appliances": "those with the most free GPU-hours first",
    "/api/v1/fleet-advice/hours": "hours, oldest first",
    "/api/v1/logs": "lines, the newest first",
    "/api/v1/agent-rollouts/versions": "a few, the most frequent first",
    "/api/v1/alerts/history": "a history, the newest first",
    "/api/v1/alerts/{alert_id}/actions": "a history, the newest first",
    "/api/v1/alerts/{alert_id}/transitions": "a history, the newest first",
    "/api/v1/job-schedules/{schedule_id}/runs": "a history, the newest first",
    "/api/v1/billing/costs": "sums, the largest first; days and months in their order",
    "/api/v1/gpu-partition-policies/modes": "a few, the weakest isolation first",
    "/api/v1/job-templates": "the tenant's by name, then those that ship",
    "/api/v1/market/capacity": "by GPU model and region",
    "/api/v1/market/reputation/contracts/{contract_id}/ratings": "months, the newest first",
    "/api/v1/market/reputation/evidence": "cases, the newest first",
    "/api/v1/market/reputation/history": "days, the earliest first",
    "/api/v1/jobs/gpu-offers": "a few, the one with the most free first",
    "/api/v1/jobs/appliances": "what a search finds, by name",
    "/api/v1/jobs/apply": "jobs, in the order of the file",
    "/api/v1/jobs/{job_id}/artifacts/parts": "in the order of the content",
    "/api/v1/jobs/{job_id}/events": "a history, short and whole",
    "/api/v1/dataset-versions/{version_id}/files": "by path, as they are stored",
    "/api/v1/queue/jobs": "a queue, in its order",
    "/api/v1/projects": "a tree, depth first",
    "/api/v1/projects/{project_id}/members": "short and whole, by email address",
    "/api/v1/queue/shares": "a tree, depth first",
    "/api/v1/metric-fields": "what a search finds, best first",
    "/api/v1/metrics": "names, in their order",
    "/api/v1/metrics/{measurement}/tags/{tag}": "values, in their order",
    "/api/v1/dashboards/apply": "changes, in the order of the file",
    "/api/v1/saved-reports/apply": "changes, in the order of the file",
    "/api/v1/saved-views": "by name",
    "/api/v1/platform/rules/apply": "changes, in the order of the file",
    "/api/v1/rules/apply": "changes, in the order of the file",
    "/api/v1/rules/preview": "what a rule finds, whole",
}


def test_every_documented_list_has_a_sort_parameter(app: Flask) -> None:
    described = app.test_client().get("/api/v1/openapi.json").json
    assert described is not None
    unsorted = set()
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if method not in {"get", "post"}:
                continue
            answer = operation["responses"].get("200", {}).get("content", {})
            schema = answer.get("application/json", {}).get("schema", {}).get("$ref", "")
            names = {parameter.get("name") for parameter in operation.get("parameters", [])}
            if schema.endswith("Page") and "AuditPage" not in schema and "sort" not in names:
                unsorted.add(path)
    assert unsorted == UNSORTED.keys()


def test_every_list_of_the_platform_can_be_sorted(olivia: Browser) -> None:
    for path in (
        "platform/growth?sort=-storage_bytes",
        "platform/jobs/stuck?sort=-stop_requested_at,name",
        "platform/notifications?sort=tries",
        "platform/receivers?sort=kind,-name",
        "platform/removals?sort=tenant_name",
    ):
        assert olivia.get(f"/api/v1/{path}").status_code == 200


def test_the_api_sorts_appliances_by_whatever_the_page_does(alice: Browser) -> None:
    names = set(re.findall(r'href="[^"]*[?&]sort=-?([a-z_]+)', alice.get("/appliances").text))
    assert names == set() or len(names) > 5
    for name in names:
        assert alice.get(f"/api/v1/appliances?sort=-{name}").status_code == 200

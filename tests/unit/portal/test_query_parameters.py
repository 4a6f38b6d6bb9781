"""An unknown query parameter is reported: by pages, by their files, and by the REST API."""

import re
from urllib.parse import urlsplit

import pytest
from flask import Flask

from core.query_parameters import unknown_parameters
from tests.costs import check_cost
from tests.unit.portal.conftest import Browser
from tests.unit.portal.routes import SAMPLED, visits
from tests.unit.portal.world import World

TYPO = "Unknown query parameter &#39;rang&#39;."
ANY = re.compile("Unknown query parameter|Invalid [a-z_]+ &#39;")
LINK = re.compile(r'href="(/[^"]*)"')
# They lead elsewhere, or are not pages.
NO_PAGES = (
    "/api/",
    "/static/",
    "/login/oidc",
    "/v2/",
    "/dashboards/",
    "/health",
    "/install",
    "/docs",
)


def paths_without_ids(app: Flask) -> list[str]:
    """Return the addresses of pages that need no id."""
    return sorted(
        str(route)
        for route, method in visits(app)
        if method == "GET" and "<" not in str(route) and not str(route).startswith(NO_PAGES)
    )


@SAMPLED
def test_every_page_and_file_reports_an_unknown_parameter(
    alice: Browser, world: World, nth: int
) -> None:
    assert world
    silent = []
    for path in paths_without_ids(alice.client.application)[::nth]:
        answer = alice.get(f"{path}?rang=1h")
        if answer.status_code == 200 and TYPO not in answer.text:
            silent.append(path)
    assert silent == []


@pytest.mark.parametrize("most_pages", [40, pytest.param(100, marks=pytest.mark.nightly)])
def test_no_link_of_a_page_has_a_parameter_that_its_target_ignores(
    alice: Browser, olivia: Browser, world: World, most_pages: int
) -> None:
    assert world
    for browser in (alice, olivia):
        waiting, wrong = ["/appliances", "/jobs", "/alerts", "/reports", "/audit"], list[str]()
        # Pages that are sorted or turned, for which the world has too few rows.
        waiting += ["/gpu-usage?sort=-used_gpu_seconds&page=2", "/reports?page=2"]
        seen: set[str] = set()
        while waiting and len(seen) < most_pages:
            path = waiting.pop()
            answer = browser.get(path)
            if answer.mimetype != "text/html":
                # A file with an ignored parameter would have been refused, with a page.
                assert answer.status_code == 200
                continue
            if ANY.search(answer.text):
                wrong.append(path)
            for href in (link.replace("&amp;", "&") for link in LINK.findall(answer.text)):
                # One link of each kind: to this kind of page with these parameters.
                kind = re.sub(r"[0-9a-f-]{36}|(?<==)[^&]*", "", href)
                if kind not in seen and not urlsplit(href).path.startswith(NO_PAGES):
                    seen.add(kind)
                    waiting.append(href)
        assert wrong == []


def test_a_page_suggests_what_was_meant(alice: Browser, nobody: Browser) -> None:
    for address, text in (
        ("/jobs?stat=failed", "Did you mean &#39;state&#39;?"),
        ("/jobs?state=faild", "Invalid state &#39;faild&#39;. Use"),
        ("/users?page=two", "Use a number from 1."),
        ("/login?nxt=/jobs", "Did you mean &#39;next&#39;?"),
    ):
        browser = nobody if address.startswith("/login") else alice
        assert text in browser.get(address).text


def test_a_page_that_shows_an_error_calls_no_parameter_unknown(alice: Browser) -> None:
    for address in (
        "/gpu-usage?by=user&since=foo&until=2026-01-01&sort=x",
        "/jobs/new?template=GONE",
        "/tenants?search=a",
        "/login/oidc/callback?state=x&error=access_denied&session_state=z",
    ):
        answer = alice.get(address)
        assert answer.status_code >= 400
        assert not ANY.search(answer.text)


def test_a_page_accepts_what_other_sites_add(alice: Browser) -> None:
    assert not ANY.search(alice.get("/jobs?utm_source=mail&fbclid=x&next=/").text)


def test_a_file_with_a_typo_in_its_filter_is_refused(alice: Browser) -> None:
    assert alice.get("/audit/export?format=csv").status_code == 200
    answer = alice.get("/audit/export?format=csv&actr=bob@acme.example")
    assert answer.status_code == 422
    assert "Did you mean" in answer.text


def test_the_api_refuses_an_unknown_parameter(alice: Browser) -> None:
    for address, advice in (
        ("/jobs?stat=failed", "Did you mean 'state'?"),
        ("/me?verbose=1", "This address has none. Remove it."),
        ("/reports?kind=jobs&rang=1h", "Use "),
    ):
        answer = alice.get(f"/api/v1{address}")
        assert (answer.status_code, answer.get_json()["code"]) == (422, "invalid_input")
        assert advice in answer.get_json()["message"]


def test_thousands_of_unknown_parameters_are_cheap(alice: Browser) -> None:
    query = "&".join(f"range{number:04}=1" for number in range(3000))
    check_cost(lambda: unknown_parameters(query.split("&"), ["range", "refresh", "page", "tz"]))
    answer = alice.get(f"/api/v1/jobs?{query}")
    assert answer.status_code == 422
    assert len(answer.get_json()["errors"]) == 20

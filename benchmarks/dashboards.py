"""Dashboards and reports of a large fleet in Chromium: how long users wait, and what it costs.

One tenant has the whole fleet. GPUs, with five values each, and hosts have samples each five
minutes, and each 30 seconds of the last hour. The usage ledger has a row for each appliance and
hour.

    first view    from opening a tier's address to its last chart
    refresh       from the request of a refresh to its answer, as Chromium measures it
    report        reports of all days as pages, and that on GPU time by appliance as a PDF
    memory        the fleet's JavaScript heap after garbage collections, over as many refreshes with
                  all values as half an hour has, one after the other
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
from playwright.sync_api import BrowserContext, Page, Request, ViewportSize, sync_playwright

from benchmarks.shared.dashboards_data import Filled, fill
from benchmarks.shared.document import (
    MILLISECONDS,
    Outcome,
    Promise,
    percentile,
    rounded,
    seconds_of,
)
from benchmarks.shared.servers import NO_HEARTBEATS, NO_RULES
from cli.bootstrap import DEMO_PASSWORD
from core.clock import utc_now
from tests.deployment import ALICE, OLIVIA, make_deployment, serving
from tests.servers import require_program

# Playwright calls the network idle when nothing was sent for as long.
IDLE_MILLISECONDS = 500.0
BOUNDS = {"first_view": 1_500.0, "refresh": 300.0, "report": 3_000.0, "pdf": 10_000.0}
MAX_GROWTH_MEBIBYTES = 1.0
REPORTS = {
    "report": "gpu-time&by=user",
    "report_by_appliance": "gpu-time&by=appliance",
    "report_capacity": "gpu-capacity",
    "report_network": "network",
}
# The heap is read this often. The caches that the first half of the refreshes fills don't count.
_HEAPS = 10
_WINDOW: ViewportSize = {"width": 1440, "height": 900}
# A chart has no drawing before its data are there; those of clusters are hidden on other pages.
_HAS_CHARTS = """() => {
    const charts = [...document.querySelectorAll(".vdd-graph")].filter(
        (chart) => chart.offsetParent !== null);
    return charts.length > 0 && charts.every((chart) => chart.querySelector(".main-svg"));
}"""
_REFRESH = """turn => {
    dash_clientside.set_props("fleet-digests", { data: {} });
    dash_clientside.set_props("tick", { n_intervals: 1e6 + turn });
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The fleet, how far it reaches back, and how often each page is opened."""

    appliances: int = 1_000
    days: int = 30
    visits: int = 5
    refreshes: int = 6
    memory_refreshes: int = 360


FULL = Plan()
QUICK = Plan(appliances=20, days=2, visits=2, refreshes=2, memory_refreshes=20)

Readings = Iterator[tuple[str, dict[str, Any]]]


def measure(plan: Plan, folder: Path) -> Outcome:
    """Fill a server and open its pages."""
    path = require_program("chromium", package="chromium")
    deployment = make_deployment(folder / "server")
    filled = fill(deployment, appliances=plan.appliances, days=plan.days)
    results: dict[str, dict[str, Any]] = {}
    with (
        serving(deployment, environ=NO_HEARTBEATS | NO_RULES),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        user, operator = (
            _signed_in(browser.new_context(base_url=deployment.url, viewport=_WINDOW), email)
            for email in (ALICE, OLIVIA)
        )
        for readings in (
            tiers(user, operator, plan=plan, filled=filled),
            reports(user, plan),
            memory(user, plan),
        ):
            for key, reading in readings:
                results[key] = reading
                click.echo(f"{key}: {reading}", err=True)
        browser.close()
    return Outcome(results, promises(results))


def _signed_in(context: BrowserContext, email: str) -> BrowserContext:
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto("/login")
    page.get_by_label("Email address").fill(email)
    page.get_by_label("Password").fill(DEMO_PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dashboards/**", wait_until="networkidle")
    page.close()
    return context


def tiers(
    user: BrowserContext, operator: BrowserContext, *, plan: Plan, filled: Filled
) -> Readings:
    """Yield how long first views and refreshes of each tier take."""
    appliance = f"/dashboards/appliances/{filled.appliance_ids[0]}"
    paths = {
        "platform": "/dashboards/platform",
        "fleet": "/dashboards/",
        "appliance": appliance,
        "gpu": f"{appliance}/gpus/0",
    }
    pages = {name: f"{path}?range=1h" for name, path in paths.items()}
    pages |= {f"{name}_30d": f"{path}?range=30d" for name, path in paths.items()}
    # A job has the range of its run, which is all days.
    pages["job"] = f"/dashboards/jobs/{filled.job_id}?range=1h"
    for name, address in pages.items():
        page = (operator if name.startswith("platform") else user).new_page()
        reading = _viewed(partial(_draw, page, f"{address}&refresh=off"), plan.visits)
        # Refreshes that are more frequent would share their results.
        refreshed = _refreshed(page, f"{address}&refresh=5s", plan.refreshes)
        page.close()
        reading["refresh_milliseconds"] = percentile(refreshed, 50)
        reading["refresh_milliseconds_p95"] = percentile(refreshed, 95)
        yield name, reading


def reports(user: BrowserContext, plan: Plan) -> Readings:
    """Yield how long reports of all days take, on the page and as a PDF."""
    since = (utc_now() - timedelta(days=plan.days)).date()
    page = user.new_page()
    for name, kind in REPORTS.items():
        address = f"/reports?kind={kind}&since={since}"
        # The wait for an idle network is not the page's.
        open_page = partial(page.goto, address, wait_until="networkidle")
        yield name, _viewed(open_page, plan.visits, waited=IDLE_MILLISECONDS)
    page.close()
    query = f"kind={REPORTS['report_by_appliance']}&since={since}&format=pdf"
    seconds = seconds_of(lambda: user.request.get(f"/reports/export?{query}", timeout=120_000))
    yield "pdf", {"milliseconds": rounded(MILLISECONDS * seconds)}


def _viewed(view: partial[Any], visits: int, *, waited: float = 0.0) -> dict[str, Any]:
    """Return how long views take; nobody else has opened the first of all before."""
    views = [MILLISECONDS * seconds_of(view) - waited for _ in range(visits)]
    return {
        "first_view_milliseconds": percentile(views, 50),
        "first_of_all_milliseconds": rounded(views[0]),
    }


def _draw(page: Page, address: str) -> None:
    """Open a dashboard and wait until all charts are drawn."""
    page.goto(address, wait_until="commit")
    page.wait_for_function(_HAS_CHARTS)


def _refreshed(page: Page, address: str, count: int) -> list[float]:
    """Return the milliseconds of each refresh of an open page."""
    milliseconds: list[float] = []

    def note(request: Request) -> None:
        if "tick.n_intervals" in (request.post_data or ""):
            milliseconds.append(request.timing["responseEnd"])

    page.on("requestfinished", note)
    page.goto(address)
    while len(milliseconds) < count:
        page.wait_for_timeout(500)
    page.remove_listener("requestfinished", note)
    return milliseconds


def memory(user: BrowserContext, plan: Plan) -> Readings:
    """Yield the heap and the DOM nodes of the fleet's page after each tenth of the refreshes."""
    page = user.new_page()
    _draw(page, "/dashboards/?refresh=off")
    debugger = user.new_cdp_session(page)
    debugger.send("Performance.enable")
    readings: list[dict[str, float]] = []
    for turn in range(1, plan.memory_refreshes + 1):
        with page.expect_response("**/_dash-update-component*"):
            page.evaluate(_REFRESH, turn)
        if turn % (plan.memory_refreshes // _HEAPS) == 0:
            page.wait_for_timeout(1_000)
            debugger.send("HeapProfiler.collectGarbage")
            metrics = debugger.send("Performance.getMetrics")["metrics"]
            readings.append({metric["name"]: metric["value"] for metric in metrics})
    page.close()
    heap = [rounded(reading["JSHeapUsedSize"] / 2**20) for reading in readings]
    growth = rounded(heap[-1] - heap[len(heap) // 2])
    nodes = [reading["Nodes"] for reading in readings]
    yield "memory", {"heap_mebibytes": heap, "nodes": nodes, "growth_mebibytes": growth}


def promises(results: dict[str, dict[str, Any]]) -> list[Promise]:
    """Return what is promised of pages, with what was measured."""
    growth = results["memory"]["growth_mebibytes"]
    name = "growth of the fleet's heap in the second half of half an hour"
    promised = [Promise(name, growth, MAX_GROWTH_MEBIBYTES, "MiB")]
    for page, figures in results.items():
        for figure, value in figures.items():
            kind = figure.removesuffix("_milliseconds")
            bound = BOUNDS.get("report" if page.startswith("report") else kind, BOUNDS.get(page))
            if bound and figure.endswith("milliseconds"):
                name = f"{page}: {kind.replace('_', ' ')}"
                promised.append(Promise(name, value, bound, "ms"))
    return promised

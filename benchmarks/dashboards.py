"""Dashboards and reports of a large fleet in Chromium: how long users wait, and what it costs.

    python -m benchmarks.dashboards [--quick] [--appliances N] [--days N] [--part PART]...
                                    [--output FILE]

One tenant has the whole fleet. GPUs, with five values each, and hosts have samples each five
minutes, and each 30 seconds of the last hour. The usage ledger has a row for each appliance and
hour.

    first view    from opening a tier's address to its last chart
    refresh       from the request of a refresh to its answer, as Chromium sees it
    report        reports of all days as pages, and that on GPU time by appliance as a PDF
    viewer        the server's CPU for each viewer of the fleet who refreshes every five seconds
    memory        the fleet's JavaScript heap after garbage collections, over as many refreshes with
                  all values as half an hour has, one after the other
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from playwright.sync_api import BrowserContext, Page, Request, ViewportSize, sync_playwright

from benchmarks.dashboards_data import Filled, fill
from benchmarks.figures import Promise, document, percentile, rounded, write_document
from benchmarks.gateway import NO_HEARTBEATS, NO_RULES, make_gateway, serving
from benchmarks.meter import read_usage, spent
from benchmarks.processes import require_program
from cli.bootstrap import DEMO_PASSWORD
from core.clock import utc_now

# Playwright calls the network idle when nothing was sent for as long.
IDLE_SECONDS = 0.5
BOUNDS = {"first_view": 1_500.0, "refresh": 300.0, "report": 3_000.0, "pdf": 10_000.0}
MAX_GROWTH_MEBIBYTES = 1.0
# The heap is read this often. The caches that the first half of the refreshes fills don't count.
_HEAPS = 10
_WINDOW: ViewportSize = {"width": 1440, "height": 900}
# A chart has no drawing before its data are there.
_HAS_CHARTS = """() => {
    const charts = [...document.querySelectorAll(".vdd-graph")];
    return charts.length > 0 && charts.every((one) => one.querySelector(".main-svg"));
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
    viewers: int = 5
    watch_seconds: float = 30.0
    memory_refreshes: int = 360


Readings = Iterator[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Measured:
    """A server with a fleet, and its users' browsers."""

    user: BrowserContext
    operator: BrowserContext
    pid: int
    plan: Plan
    filled: Filled


FULL = Plan()
QUICK = Plan(
    appliances=20, days=2, visits=2, refreshes=2, viewers=2, watch_seconds=6.0, memory_refreshes=20
)


def measure(plan: Plan, parts: Sequence[str] = ()) -> dict[str, object]:
    """Fill a server, open its pages, and return the document; without parts, all are measured."""
    started_at = utc_now()
    path = require_program("chromium", package="chromium")
    results: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="vedette-bench-") as name, sync_playwright() as playwright:
        gateway = make_gateway(Path(name), extra_environ=NO_HEARTBEATS | NO_RULES)
        filled = fill(gateway, appliances=plan.appliances, days=plan.days)
        with serving(gateway) as pid:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            user, operator = (
                _signed_in(browser.new_context(base_url=gateway.url, viewport=_WINDOW), email)
                for email in ("alice@acme.example", "olivia@vedette.example")
            )
            measured = Measured(user, operator, pid, plan, filled)
            for part in parts or PARTS:
                for key, reading in PARTS[part](measured):
                    results[key] = reading
                    click.echo(f"{key}: {reading}", err=True)
            browser.close()
    return document(
        "dashboards",
        started_at=started_at,
        settings=asdict(plan),
        results=results,
        promises=_promises(results),
    )


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


def tiers(measured: Measured) -> Readings:
    """Yield how long first views and refreshes of each tier take."""
    appliance = f"/dashboards/appliances/{measured.filled.appliance_id}"
    paths = {
        "platform": "/dashboards/platform",
        "fleet": "/dashboards/",
        "appliance": appliance,
        "gpu": f"{appliance}/gpus/0",
    }
    # A job has the range of its run, which is all days.
    job = f"/dashboards/jobs/{measured.filled.job_id}"
    pages = [(key, path, "1h") for key, path in paths.items()]
    pages += [(f"{key}_30d", path, "30d") for key, path in paths.items()]
    plan = measured.plan
    for name, path, span in [*pages, ("job", job, "1h")]:
        context = measured.operator if path == paths["platform"] else measured.user
        page, address = context.new_page(), f"{path}?range={span}&"
        views = [_drawn(page, f"{address}refresh=off") for _ in range(plan.visits)]
        # Refreshes that are more frequent would share their results.
        refreshed = _refreshed(page, f"{address}refresh=5s", plan.refreshes)
        page.close()
        yield (
            name,
            {
                "first_view_milliseconds": percentile(views, 50),
                # Nobody else has opened it before.
                "first_of_all_milliseconds": rounded(views[0]),
                "refresh_milliseconds": percentile(refreshed, 50),
                "refresh_milliseconds_p95": percentile(refreshed, 95),
            },
        )


def reports(measured: Measured) -> Readings:
    """Yield how long reports of all days take, on the page and as a PDF."""
    plan = measured.plan
    since = (utc_now() - timedelta(days=plan.days)).date()
    page = measured.user.new_page()
    for name, kind in {
        "report": "gpu-time&by=user",
        "report_by_appliance": "gpu-time&by=appliance",
        "report_capacity": "gpu-capacity",
        "report_network": "network",
    }.items():
        address = f"/reports?kind={kind}&since={since}"
        views = [_opened(page, address) for _ in range(plan.visits)]
        yield (
            name,
            {
                "first_view_milliseconds": percentile(views, 50),
                "first_of_all_milliseconds": rounded(views[0]),
            },
        )
    page.close()
    began = time.perf_counter()
    query = f"kind=gpu-time&by=appliance&since={since}&format=pdf"
    answer = measured.user.request.get(f"/reports/export?{query}", timeout=120_000)
    seconds = time.perf_counter() - began
    yield "pdf", {"milliseconds": rounded(1_000 * seconds), "bytes": len(answer.body())}


def _drawn(page: Page, address: str) -> float:
    """Return the milliseconds until all charts of a dashboard are drawn."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_function(_HAS_CHARTS)
    return 1_000 * (time.perf_counter() - began)


def _opened(page: Page, address: str) -> float:
    """Return the milliseconds until a page is complete."""
    began = time.perf_counter()
    page.goto(address, wait_until="networkidle")
    return 1_000 * (time.perf_counter() - began - IDLE_SECONDS)


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


def viewers(measured: Measured) -> Readings:
    """Yield the server's CPU without viewers, and what each of one and of several adds."""
    plan = measured.plan

    def cpu() -> float:
        before = read_usage(measured.pid)
        time.sleep(plan.watch_seconds)
        return spent(before, read_usage(measured.pid))["cpu_milliseconds_per_second"]

    idle = cpu()
    reading = {"idle_cpu_milliseconds_per_second": rounded(idle)}
    pages: list[Page] = []
    for count in (1, plan.viewers):
        while len(pages) < count:
            pages.append(measured.user.new_page())
            pages[-1].goto("/dashboards/?refresh=5s", wait_until="networkidle")
        added = (cpu() - idle) / count
        reading[f"cpu_milliseconds_per_second_of_each_of_{count}"] = rounded(added)
    for page in pages:
        page.close()
    yield "viewer", reading


def memory(measured: Measured) -> Readings:
    """Yield the heap and the DOM nodes of the fleet's page after each tenth of the refreshes."""
    context, refreshes = measured.user, measured.plan.memory_refreshes
    page = context.new_page()
    page.goto("/dashboards/?refresh=off", wait_until="networkidle")
    debugger = context.new_cdp_session(page)
    debugger.send("Performance.enable")
    readings: list[dict[str, float]] = []
    for turn in range(1, refreshes + 1):
        with page.expect_response("**/_dash-update-component*"):
            page.evaluate(_REFRESH, turn)
        if turn % (refreshes // _HEAPS) == 0:
            page.wait_for_timeout(1_000)
            debugger.send("HeapProfiler.collectGarbage")
            metrics = debugger.send("Performance.getMetrics")["metrics"]
            readings.append({metric["name"]: metric["value"] for metric in metrics})
    page.close()
    heap = [reading["JSHeapUsedSize"] / 2**20 for reading in readings]
    yield (
        "memory",
        {
            "heap_mebibytes": [rounded(value) for value in heap],
            "nodes": [reading["Nodes"] for reading in readings],
            "growth_mebibytes": rounded(heap[-1] - heap[len(heap) // 2]),
        },
    )


PARTS: Mapping[str, Callable[[Measured], Readings]] = {
    "tiers": tiers,
    "reports": reports,
    "viewers": viewers,
    "memory": memory,
}


def _promises(results: dict[str, dict[str, Any]]) -> list[Promise]:
    promises = []
    for name, figures in results.items():
        for key, value in figures.items():
            kind = {"first_view_milliseconds": "first_view", "refresh_milliseconds": "refresh"}
            bound = "report" if name.startswith("report") else kind.get(key, name)
            if bound in BOUNDS and key.endswith("milliseconds"):
                title = f"{name}: {key.removesuffix('_milliseconds').replace('_', ' ')}"
                promises.append(Promise(name=title, bound=BOUNDS[bound], measured=value, unit="ms"))
    if "memory" in results:
        title = "growth of the fleet's heap in the second half of half an hour"
        growth = results["memory"]["growth_mebibytes"]
        promises.append(
            Promise(name=title, bound=MAX_GROWTH_MEBIBYTES, measured=growth, unit="MiB")
        )
    return promises


@click.command()
@click.option("--quick", is_flag=True, help="20 appliances, two days.")
@click.option("--appliances", type=click.IntRange(1))
@click.option("--days", type=click.IntRange(1))
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)))
@click.option("--output", type=click.Path(path_type=Path), help="Also keep the JSON here.")
def main(
    *,
    quick: bool,
    appliances: int | None,
    days: int | None,
    parts: Sequence[str],
    output: Path | None,
) -> None:
    """Measure, and print JSON."""
    plan = QUICK if quick else FULL
    plan = replace(plan, appliances=appliances or plan.appliances, days=days or plan.days)
    write_document(measure(plan, parts), output)


if __name__ == "__main__":
    main()

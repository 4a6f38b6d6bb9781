"""Every tier and report with data and without, in three widths; controls in every state."""

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from dash_app.custom.panels import ChartKind
from dash_app.reports.report import FileFormat, ReportKind
from tests.deployment import ALICE, OLIVIA
from tests.e2e.axe import faults_of, faults_of_states
from tests.e2e.conftest import STEP_MS, Demo
from tests.e2e.walking import (
    MIDDLE_DARK,
    NARROW_LIGHT,
    WIDE_DARK,
    WIDE_LIGHT,
    put_on,
    show,
    sign_in,
)

pytestmark = [pytest.mark.needs_chromium, pytest.mark.nightly, pytest.mark.timeout(1800)]

LOOKS = (WIDE_LIGHT, MIDDLE_DARK, NARROW_LIGHT)
REPORTS = [f"/reports?kind={kind}" for kind in ReportKind]
# Before any sample: everything is there, and empty.
EMPTY = "from=946684800000&to=946688400000&refresh=off"

# The demo enrolls its fleet while it starts.
FILLED_MS = 120_000

Watched = Callable[[str], Page]


@pytest.fixture
def watched(demo: Demo, chromium: Browser) -> Iterator[Watched]:
    """Sign a user in; errors on the console of any page fail the test."""
    errors: list[str] = []
    contexts = []

    def open_one(email: str) -> Page:
        context = chromium.new_context(bypass_csp=True, base_url=demo.url)
        contexts.append(context)
        context.set_default_timeout(STEP_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.on(
            "console",
            lambda said: (
                errors.append(f"{page.url}: {said.text}") if said.type == "error" else None
            ),
        )
        put_on(page, WIDE_LIGHT)
        sign_in(page, email)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


def tiers(page: Page) -> list[str]:
    """Return the addresses of a fleet, an appliance with GPUs, one of its GPUs, and a job."""
    show(page, "/dashboards/?refresh=2s")
    link = page.get_by_role("link", name="dgx-01", exact=True)
    link.wait_for(timeout=FILLED_MS)
    appliance = str(link.get_attribute("href")).partition("?")[0]
    show(page, "/jobs")
    job = page.locator("a[href^='/jobs/0']").first.get_attribute("href")
    return ["/dashboards/", appliance, f"{appliance}/gpus/0", f"/dashboards{job}"]


@pytest.mark.parametrize("query", ["refresh=off", EMPTY])
def test_every_tier_has_no_fault(watched: Watched, query: str) -> None:
    page = watched(ALICE)
    addresses = [f"{tier}?{query}" for tier in tiers(page)]
    faults = list(_faults(page, addresses))
    page = watched(OLIVIA)
    faults += _faults(page, [f"/dashboards/platform?{query}"])
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("query", ["", "&since=2000-01-01&until=2000-01-02"])
def test_every_report_has_no_fault(watched: Watched, query: str) -> None:
    page = watched(ALICE)
    addresses = [f"{report}{query}" for report in REPORTS]
    faults = list(_faults(page, [*addresses, "/reports/saved", "/reports/saved/new?kind=gpu-time"]))
    assert not faults, "\n".join(faults)


def test_controls_are_readable_in_every_state(watched: Watched) -> None:
    page = watched(ALICE)
    faults = []
    for address in [*tiers(page), "/reports?kind=availability", "/reports/saved/new"]:
        show(page, address)
        for look in (WIDE_LIGHT, WIDE_DARK):
            put_on(page, look)
            faults += [f"{address} {look.theme}: {fault}" for fault in faults_of_states(page)]
    assert not faults, "\n".join(faults)


def test_a_custom_dashboard_has_no_fault(watched: Watched) -> None:
    page = watched(ALICE)
    tiers(page)  # once there are samples
    show(page, "/custom-dashboards/import")
    panels = [
        {"title": kind, "chart": kind, "measurement": "gpu", "fields": ["power_watts"]}
        | {"group_by": ["appliance", "gpu"]}
        for kind in ChartKind
    ]
    page.get_by_label("Or paste it").fill(
        json.dumps({"dashboards": [{"name": "All", "panels": panels}]})
    )
    page.get_by_role("button", name="Import dashboards").click()
    address = str(page.get_by_role("link", name="All", exact=True).get_attribute("href"))
    faults = list(_faults(page, [f"{address}?refresh=off", "/custom-dashboards"]))
    put_on(page, WIDE_DARK)
    show(page, f"{address}?refresh=off")
    faults += [f"{address} dark: {fault}" for fault in faults_of_states(page)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("kind", ReportKind)
def test_every_file_of_a_report_opens(watched: Watched, kind: ReportKind) -> None:
    page = watched(ALICE)
    show(page, f"/reports?kind={kind}")
    rows = page.locator("table.us-report tbody tr").count()
    for file_format in FileFormat:
        with page.expect_download() as started:
            page.get_by_role("link", name=file_format.upper(), exact=True).click()
        data = started.value.path().read_bytes()
        if file_format is FileFormat.CSV:
            assert len(list(csv.reader(io.StringIO(data.decode())))) == 1 + rows
        elif file_format is FileFormat.XLSX:
            with zipfile.ZipFile(io.BytesIO(data)) as book:
                # A title, an empty line, the headings, and the totals.
                assert book.read("xl/worksheets/sheet1.xml").count(b"<row ") >= 3 + rows
        else:
            assert data.startswith(b"%PDF")
            assert data.rstrip().endswith(b"%%EOF")


def _faults(page: Page, addresses: list[str]) -> Iterator[str]:
    for address in addresses:
        show(page, address)
        for look in LOOKS:
            put_on(page, look)
            for fault in faults_of(page):
                yield f"{address} {look.width} {look.theme}: {fault}"

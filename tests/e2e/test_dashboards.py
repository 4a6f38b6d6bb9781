"""Users work with charts: zoom, compare, read legends, download, enlarge, filter."""

import csv
import io
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.deployment import ALICE
from tests.e2e.conftest import Demo, screenshot

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(240)]
SignIn = Callable[..., Page]
# The demo writes its past while it starts.
SLOW_MS = 120_000
PNG = b"\x89PNG\r\n\x1a\n"
LINE = ".scatterlayer path.js-line"


def panel(page: Page, ident: str) -> Locator:
    return page.locator(".vdd-panel").filter(has=page.locator(f"#{ident}"))


def choose(page: Page, ident: str, item: str) -> None:
    box = panel(page, ident)
    box.get_by_role("button", name=re.compile("Menu of")).click()
    box.get_by_role("button", name=item).click()


def window_of(page: Page) -> tuple[int, int]:
    query = parse_qs(urlsplit(page.url).query)
    return int(query["from"][0]), int(query["to"][0])


def open_appliance(sign_in: SignIn) -> Page:
    """Open one with an hour of history, which the demo writes after its start."""
    page = sign_in(ALICE, path="/dashboards/?refresh=2s")
    page.get_by_role("link", name="dgx-04", exact=True).click()
    page.wait_for_function(
        "() => document.querySelector('#appliance-load .js-plotly-plot')?.data?.[0]?.x[200]",
        timeout=SLOW_MS,
    )
    return page


def test_alice_reads_downloads_and_enlarges_charts(sign_in: SignIn, tmp_path: Path) -> None:
    page = open_appliance(sign_in)

    legend = panel(page, "appliance-load").locator(".vdd-legend")
    expect(legend.get_by_role("columnheader")).to_have_text(["min", "mean", "max", "last step"])
    legend.get_by_role("button", name="15 min").click()
    expect(page.locator(f"#appliance-load {LINE}")).to_have_count(2)
    for _ in range(3):  # A refresh does not show the line again.
        page.wait_for_event("response", lambda response: "_dash-update-component" in response.url)
    expect(page.locator(f"#appliance-load {LINE}")).to_have_count(2)

    # The crosshair of one chart is in the others, too.
    chart = page.locator("#appliance-load .nsewdrag")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#appliance-network .vdd-crosshair")).to_be_visible()

    with page.expect_download() as started:
        choose(page, "appliance-load", "Download CSV")
    started.value.save_as(tmp_path / "load.csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "load.csv").read_text())))
    assert rows[0] == ["time", "1 min", "5 min", "15 min"]
    first, last = (datetime.fromisoformat(rows[at][0]) for at in (1, -1))
    assert timedelta(minutes=50) < last - first < timedelta(minutes=70)
    with page.expect_download() as started:
        choose(page, "appliance-load", "Download PNG")
    started.value.save_as(tmp_path / "load.png")
    assert (tmp_path / "load.png").read_bytes().startswith(PNG)
    choose(page, "appliance-load", "Full screen")
    expect(page.locator(".vdd-panel.is-full")).to_have_count(1)
    choose(page, "appliance-load", "Full screen")
    expect(page.locator(".vdd-panel.is-full")).to_have_count(0)

    box_of_power = panel(page, "appliance-gpu-power_watts")
    box_of_power.get_by_role("button", name=re.compile("Menu of")).click()
    box_of_power.get_by_role("link", name="Create rule").click()
    expect(page.locator("[name=metric]")).to_have_value("gpu.power_watts")


def test_alice_moves_through_time_and_compares(sign_in: SignIn) -> None:
    page = open_appliance(sign_in)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_role("link", name="Previous period").click()
    legend = panel(page, "appliance-load").locator(".vdd-legend")
    expect(legend).to_contain_text("5 min, previous period")

    page.get_by_role("button", name="Previous period", exact=True).click()
    page.wait_for_url("**from=*")
    start, end = window_of(page)
    page.get_by_role("button", name="Zoom out").click()
    page.wait_for_function("start => !location.search.includes(`from=${start}&`)", arg=start)
    wider = window_of(page)
    assert (wider[1] - wider[0]) / (end - start) == pytest.approx(2, abs=0.01)
    page.locator("#range").click()
    page.locator("#absolute-from").fill("now-2h")
    toggle = page.locator("#range")
    before = toggle.inner_text()
    page.evaluate("window.vedetteTime.back()")
    expect(toggle).not_to_have_text(before)
    expect(page.locator("#absolute-from")).to_have_value("now-2h")
    wider = window_of(page)
    page.locator("#absolute-to").fill("2020-01-01 00:00")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#absolute-to:invalid")).to_have_count(1)
    page.locator("#absolute-to").fill("now")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_function("end => !location.search.includes(`to=${end}`)", arg=wider[1])
    start, end = window_of(page)
    assert end - start == 2 * 3600 * 1000
    screenshot(page, "12-appliance")


def test_alice_goes_to_a_gpu_and_through_time_by_keys(sign_in: SignIn) -> None:
    page = sign_in(ALICE)
    expect(page.locator(".vdd-card").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Kiosk mode")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search").fill("dgx-02 gpu 3")
    expect(page.get_by_role("option", name="dgx-02 GPU 3")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpus/3")
    expect(page.get_by_role("heading", name="GPU 3")).to_be_visible()
    page.keyboard.press("[")
    page.wait_for_url("**from=*")
    page.keyboard.press("k")
    expect(page.locator(".vd-sidebar")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator(".vd-sidebar")).to_be_visible()


def test_alice_filters_the_fleet_by_its_address_and_opens_a_gpu_from_the_heat_map(
    sign_in: SignIn, demo: Demo
) -> None:
    query = "refresh=2s&text=dgx-05&color=temperature&tz=Asia/Tokyo"
    page = sign_in(ALICE, path=f"/dashboards/?{query}")
    expect(page.locator(".vdd-card")).to_have_count(1)
    expect(page.locator("#fleet-color input:checked")).to_have_value("temperature")
    page.locator("#fleet-group").get_by_text("Site").click()
    page.wait_for_url("**group=site**")
    expect(page.get_by_role("heading", name=re.compile("^Porto"))).to_be_visible()

    heat = page.locator("#fleet-heat .nsewdrag")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.03)
    page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.03)
    page.wait_for_url("**/gpus/0**tz=Asia**")
    expect(page.get_by_role("heading", name="GPU 0")).to_be_visible()
    page.get_by_role("button", name="Kiosk mode").click()
    expect(page.locator(".vd-sidebar")).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{demo.url}/dashboards/?refresh=off")
    expect(page.locator(".vdd-card").first).to_be_in_viewport()
    expect(page.locator(f"#fleet-network {LINE}").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollHeight") <= 4400
    page.get_by_role("link", name="dgx-04", exact=True).click()
    expect(page.locator(f"#appliance-load {LINE}").first).to_be_attached()
    expect(page.get_by_role("columnheader", name="Power")).to_be_in_viewport(ratio=0)
    assert page.evaluate("document.documentElement.scrollHeight") <= 4400

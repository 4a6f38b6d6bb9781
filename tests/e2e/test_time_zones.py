"""Charts in browsers of other time zones: axis, hover, drag-zoom, and a change of the clock."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
import requests
from playwright.sync_api import Browser, Locator, Page, expect

from collector.enrollment import enroll
from core.clock import to_ns, utc_now
from protocol.inventory import Inventory
from tests.deployment import ALICE, Deployment, make_deployment, serving
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import sign_in
from tests.fixtures.file_modes import no_umask
from tests.fixtures.polling import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(300)]

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
KOLKATA, NEW_YORK = ZoneInfo("Asia/Kolkata"), ZoneInfo("America/New_York")
WIDTH = 3 * HOUR


def last_change(*, is_spring: bool) -> datetime:
    """Return the last instant at which New York's clocks were changed."""
    at = utc_now().replace(minute=0, second=0, microsecond=0) - 4 * HOUR
    while True:
        before, after = (instant.astimezone(NEW_YORK).dst() for instant in (at - HOUR, at))
        if before != after and bool(after) == is_spring:
            return at
        at -= HOUR


SPRING, AUTUMN = last_change(is_spring=True), last_change(is_spring=False)
RECENT = utc_now().replace(minute=0, second=0, microsecond=0) - WIDTH - HOUR


@dataclass(frozen=True, slots=True)
class Site:
    """A server with an appliance whose load is known at every minute."""

    deployment: Deployment
    appliance_id: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    deployment = make_deployment(folder)
    with no_umask(), serving(deployment, environ={"VEDETTE_SAMPLE_RETENTION_DAYS": "800"}):
        identity = enroll(
            portal_url=deployment.url,
            token=deployment.enrollment_secret("acme"),
            name="gpu-01",
            inventory=Inventory(hostname="gpu-01"),
            data_dir=folder / "agent",
        )
        for middle in (RECENT, SPRING, AUTUMN):
            lines = [
                f"load load1={minute % 7},load5=1,load15=1 {to_ns(middle + minute * MINUTE)}"
                for minute in range(-180, 181)
            ]
            answer = requests.post(
                f"{deployment.url}/api/v2/write",
                data="\n".join(lines),
                headers={"Authorization": f"Bearer {identity.agent_token}"},
                timeout=60,
            )
            assert answer.status_code == 204, answer.text
        yield Site(deployment, identity.appliance_id)


@pytest.fixture
def browser_in(chromium: Browser, site: Site) -> Iterator[Callable[..., Page]]:
    """Return a function that signs alice in with a browser in a zone."""
    contexts = []

    def open_browser(zone: ZoneInfo) -> Page:
        context = chromium.new_context(
            base_url=site.deployment.url,
            timezone_id=zone.key,
            viewport={"width": 1440, "height": 900},
        )
        contexts.append(context)
        context.set_default_timeout(STEP_MS)
        page = context.new_page()
        sign_in(page, ALICE)
        return page

    yield open_browser
    for context in contexts:
        context.close()


def milliseconds(at: datetime) -> int:
    return to_ns(at) // 1_000_000


def open_load(page: Page, site: Site, middle: datetime, *, query: str = "") -> Locator:
    """Open the dashboard around an instant and return the load's chart when it is drawn."""
    start, end = (milliseconds(at) for at in (middle - WIDTH, middle + WIDTH))
    path = f"/dashboards/appliances/{site.appliance_id}?refresh=off&from={start}&to={end}{query}"
    page.goto(path)
    chart = page.locator("#appliance-load")
    expect(chart.locator(".scatterlayer path.js-line").first).to_be_attached()
    chart.scroll_into_view_if_needed()
    return chart


def pixel_of(chart: Locator, share: float) -> tuple[float, float]:
    """Return the place in the middle of a chart at a share of its axis."""
    box = chart.locator(".nsewdrag").bounding_box()
    assert box is not None
    return box["x"] + box["width"] * share, box["y"] + box["height"] / 2


def hover(page: Page, chart: Locator, share: float) -> list[str]:
    page.mouse.move(*pixel_of(chart, share))
    expect(chart.locator(".hoverlayer .legendtext").first).to_be_attached()
    return chart.locator(".hoverlayer text").all_text_contents()


def drag(page: Page, chart: Locator, first: float, last: float) -> tuple[datetime, datetime]:
    """Drag over a share of the axis and return the period in the address."""
    before = page.url
    page.mouse.move(*pixel_of(chart, first))
    page.mouse.down()
    page.mouse.move(*pixel_of(chart, (first + last) / 2))
    page.mouse.move(*pixel_of(chart, last))
    page.mouse.up()
    page.wait_for_url(lambda url: url != before)
    query = parse_qs(urlsplit(page.url).query)
    start, end = (
        datetime.fromtimestamp(int(query[name][0]) / 1000, tz=UTC) for name in ("from", "to")
    )
    return start, end


def labels_of(chart: Locator) -> list[str]:
    labels: list[str] = chart.locator(".xaxislayer-above .xtick text").evaluate_all(
        "all => all.map(text => text.dataset.unformatted.split('<br>')[0])"
    )
    return labels


def places_of(chart: Locator) -> list[float]:
    """Return where the labels of the axis are, as shares of it."""
    places: list[float] = chart.evaluate(
        """node => {
            const { xaxis } = node.querySelector('.js-plotly-plot')._fullLayout;
            const labels = xaxis._vals.filter((label) => !label.minor);
            return labels.map((label) => xaxis.l2p(label.x) / xaxis._length);
        }"""
    )
    return places


def clock_at(places: Sequence[float], middle: datetime, zone: ZoneInfo) -> list[str]:
    """Return what the clock of a zone shows at some places of the axis around an instant."""
    assert len(places) >= 3
    start = middle - WIDTH + MINUTE / 2
    return [f"{(start + 2 * WIDTH * place).astimezone(zone):%H:%M}" for place in places]


@pytest.mark.parametrize(
    ("zone", "middle"),
    [
        (KOLKATA, RECENT),
        # On the days of the changes there are hours before and after them, too.
        (NEW_YORK, RECENT),
        (NEW_YORK, SPRING),
        (NEW_YORK, AUTUMN),
    ],
    ids=["Kolkata", "New York", "New York in spring", "New York in autumn"],
)
def test_labels_hover_and_dragging_mean_the_same_instants(
    site: Site, browser_in: Callable[..., Page], zone: ZoneInfo, middle: datetime
) -> None:
    page = browser_in(zone)
    chart = open_load(page, site, middle)

    assert labels_of(chart) == clock_at(places_of(chart), middle, zone)

    # Half an hour after the middle, where New York changed its clock.
    texts = hover(page, chart, 7 / 12)
    screenshot(page, f"21-{zone.key.partition('/')[2]}-{middle.month}")
    at = (middle + HOUR / 2).astimezone(zone)
    assert f"{at:%b %d %H:%M:%S %Z}" in texts

    start, end = drag(page, chart, 0.25, 0.75)
    # A pixel is about a minute.
    assert abs(start - (middle - WIDTH / 2)) <= 2 * MINUTE
    assert abs(end - (middle + WIDTH / 2)) <= 2 * MINUTE
    expect(page.locator("#range")).to_contain_text(f"{start.astimezone(zone):%b %d %H:%M}")
    expect(chart.locator(".scatterlayer path.js-line").first).to_be_attached()


def choose_in_settings(page: Page, zone: str) -> None:
    page.goto("/settings")
    page.locator("#time_zone").select_option(zone)
    page.get_by_role("button", name="Change time zone").click()
    expect(page.get_by_text("Time zone changed")).to_be_visible()


def choose_on_page(page: Page, name: str, zone: str) -> None:
    page.locator("#zone").click()
    page.locator(".vdd-menu.show").get_by_text(name).click()
    expect(page.locator("#zone")).to_have_text(re.compile(zone))


def test_charts_are_in_the_chosen_zone_and_a_page_may_be_in_another(
    site: Site, browser_in: Callable[..., Page]
) -> None:
    page = browser_in(KOLKATA)
    choose_in_settings(page, NEW_YORK.key)
    chart = open_load(page, site, RECENT)
    expect(page.locator("#zone")).to_have_text(re.compile("America/New_York"))
    assert labels_of(chart) == clock_at(places_of(chart), RECENT, NEW_YORK)

    for name, zone in (("Browser time", KOLKATA), ("UTC", ZoneInfo("UTC"))):
        choose_on_page(page, name, zone.key)
        eventually(
            lambda: labels_of(chart) == clock_at(places_of(chart), RECENT, zone),  # noqa: B023 - awaited here
            within_seconds=60,
            what=f"labels in {zone.key}",
        )
    choose_on_page(page, "My time zone", NEW_YORK.key)

    # Between these times, the clocks are turned back.
    page.locator("#range").click()
    for name, at in (("from", AUTUMN - 3 * HOUR), ("to", AUTUMN + 3 * HOUR)):
        page.locator(f"#absolute-{name}").fill(f"{at.astimezone(NEW_YORK):%Y-%m-%d %H:%M}")
    page.get_by_role("button", name="Apply").click()
    start, end = milliseconds(AUTUMN - 3 * HOUR), milliseconds(AUTUMN + 3 * HOUR)
    page.wait_for_url(f"**from={start}&to={end}**")
    choose_in_settings(page, "")


def test_a_phone_shows_the_zone_and_downloads_have_the_offset(
    site: Site, browser_in: Callable[..., Page]
) -> None:
    page = browser_in(KOLKATA)
    chart = open_load(page, site, RECENT)
    panel = page.locator(".vdd-panel").filter(has=chart)
    panel.get_by_role("button", name=re.compile("Menu of")).click()
    with page.expect_download() as started:
        panel.get_by_role("button", name="Download CSV").click()
    first = started.value.path().read_text().splitlines()[1].split(",")[0]
    assert first == (RECENT - WIDTH).astimezone(KOLKATA).isoformat()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#zone")).to_be_visible()
    screenshot(page, "22-zone-390")

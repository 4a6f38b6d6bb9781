"""Dashboards of a small fleet in Chromium, from the fleet to a GPU, without the demo."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cli.asgi import create_asgi_app
from cli.backend import Backend
from core.db import SessionFactory
from core.settings import ServerSettings
from tenants.users.sightings import Sightings
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.e2e.conftest import STEP_MS
from tests.e2e.walking import sign_in
from tests.fixtures.serving import Serving
from tests.servers import free_port
from tests.unit.dash_app.conftest import Fleet, fleet_of_three, fleet_samples
from timeseries.store import Store

__all__ = ["fleet_of_three", "fleet_samples"]

pytestmark = [pytest.mark.needs_chromium, pytest.mark.timeout(300)]

LINE = ".js-plotly-plot .scatterlayer path.js-line"


@pytest.fixture
def page(
    *,
    sessions: SessionFactory,
    cast: Cast,
    store: Store,
    clock: FrozenClock,
    fleet_of_three: Fleet,
    chromium: Browser,
    tmp_path: Path,
) -> Iterator[Page]:
    """The fleet in bob's browser; a script error or a refused request fails the test."""
    assert fleet_of_three
    faults: list[str] = []
    settings = ServerSettings(data_dir=tmp_path, port=free_port())
    app = create_asgi_app(Backend(settings, sessions, store, Sightings(sessions)), clock=clock)
    with Serving(app, port=settings.port) as url:
        context = chromium.new_context(base_url=url)
        context.set_default_timeout(STEP_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        sign_in(page, cast.bob.email, PASSWORD)
        yield page
        context.close()
    assert faults == []


def test_bob_goes_from_the_fleet_to_an_appliance_to_a_gpu(
    page: Page, fleet_of_three: Fleet
) -> None:
    expect(page.locator(f"#fleet-power {LINE}").first).to_be_attached()
    expect(page.get_by_text(fleet_of_three.foreign.name)).to_have_count(0)

    page.get_by_role("link", name="dgx-01", exact=True).click()
    expect(page.get_by_role("heading", name="dgx-01")).to_be_visible()
    expect(page.locator(LINE).first).to_be_attached()

    page.locator("a[href*='/gpus/1']").first.click()
    expect(page).to_have_url(re.compile(r"/gpus/1"))
    expect(page.get_by_role("heading", name="GPU 1")).to_be_visible()
    expect(page.locator(LINE).first).to_be_attached()

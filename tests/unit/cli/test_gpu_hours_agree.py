"""GPU-hours of one period are one figure, on every page, resource, file, command and dashboard."""

import csv
import io
import json
import re
from datetime import timedelta

import pytest
from flask import Flask
from plotly.io.json import to_json_plotly

from core.clock import to_ns
from core.db import SessionFactory
from core.rate_limits import ConcurrencyLimit
from core.settings import ServerSettings
from dash_app.context import MINUTE, SharedCache, View
from dash_app.routes import parse_path
from dash_app.tiers import fleet as fleet_tier
from dash_app.tiers import platform as platform_tier
from dash_app.timerange import Controls
from jobqueue.usage.ledger import SETTLE, record_usage
from tenants.models import User
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.in_process import run_vedette
from tests.fixtures.shared_portal import Serve
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import start
from tests.unit.portal.conftest import Browser
from timeseries.store import Store

HOUR = timedelta(hours=1)
# Two GPUs since noon: two hours are in the ledger, 40 minutes of the third are not.
NOW = NOON + 2 * HOUR + timedelta(minutes=40)
GPU_HOURS = 2 * (2 + 40 / 60)
SHOWN = "5.3"
DAY = "since=2026-03-02T00:00:00Z&until=2026-03-03T00:00:00Z"


@pytest.fixture(autouse=True)
def _ledger(sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock) -> None:
    with sessions.begin() as session:
        start(session, cast, gpus=2)
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    clock.now = NOW


@pytest.fixture
def app(settings: ServerSettings, server_app: object, serve: Serve) -> Flask:
    """The portal behind `url`."""
    assert server_app
    return serve(settings)


def browser(app: Flask, user: User) -> Browser:
    browser = Browser(app.test_client())
    assert browser.sign_in(user.email).status_code == 302
    return browser


def shown_by(view: View, tier: object) -> str:
    return to_json_plotly(tier.DASHBOARD.refresh(view))  # type: ignore[attr-defined, no-any-return]


def texts(page: str) -> list[str]:
    """Return the texts between the tags of a page."""
    return [text.strip() for text in re.split(r"<[^>]*>", page) if text.strip()]


@pytest.mark.parametrize(
    "by",
    [
        *("user", "day"),
        *(pytest.param(by, marks=pytest.mark.nightly) for by in ("job", "appliance", "gpu_model")),
    ],
)
def test_pages_resources_and_files_show_the_same_gpu_hours(app: Flask, cast: Cast, by: str) -> None:
    alice = browser(app, cast.alice)
    usage = alice.get(f"/api/v1/gpu-usage?by={by}&{DAY}").get_json()
    report = alice.get(f"/api/v1/reports?kind=gpu-time&by={by}&{DAY}").get_json()
    files = [
        list(csv.reader(io.StringIO(alice.get(path).text)))
        for path in (
            f"/api/v1/gpu-usage/export?by={by}&{DAY}",
            f"/gpu-usage/export?by={by}&since=2026-03-02&until=2026-03-02",
            f"/api/v1/reports/export?kind=gpu-time&by={by}&format=csv&{DAY}",
        )
    ]
    assert [
        usage["sum"]["allocated_gpu_seconds"] / 3600,
        usage["items"][0]["allocated_gpu_seconds"] / 3600,
        report["rows"][0][1],
        report["totals"][1],
        float(files[0][1][2]) / 3600,
        float(files[1][1][2]) / 3600,
        float(files[2][1][1]),
    ] == [pytest.approx(GPU_HOURS, abs=1e-6)] * 7
    day = "since=2026-03-02&until=2026-03-02"
    page = alice.get(f"/gpu-usage?by={by}&{day}").text
    # Allocated, and not measured: there are no samples.
    assert texts(page).count(f"{SHOWN} h") == 2
    assert "GPU-hours so far" in texts(page)
    assert "5.33" in texts(alice.get(f"/reports?kind=gpu-time&by={by}&{day}").text)


def test_the_operators_console_shows_the_same_gpu_hours(app: Flask, cast: Cast) -> None:
    olivia = browser(app, cast.olivia)
    summary = olivia.get("/api/v1/platform/summary").get_json()
    acme = next(tenant for tenant in summary["tenants"] if tenant["slug"] == "acme")
    usage = olivia.get("/api/v1/gpu-usage?by=tenant").get_json()
    assert [
        summary["gpu_hours"],
        acme["gpu_hours"],
        usage["sum"]["allocated_gpu_seconds"] / 3600,
    ] == [pytest.approx(GPU_HOURS)] * 3
    assert texts(olivia.get("/console").text).count(SHOWN) == 2


def test_dashboards_show_the_same_gpu_hours(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    midnight = NOON - 12 * HOUR
    window = f"?from={to_ns(midnight) // 10**6}&to={to_ns(midnight + 24 * HOUR) // 10**6}"
    with sessions() as session:

        def view(user: User, path: str) -> View:
            return View(
                session=session,
                store=store,
                cache=SharedCache(clock, ttl=MINUTE),
                custom=ConcurrencyLimit(1),
                scope=scope_of(user),
                now=NOW,
                route=parse_path(path),
                controls=Controls.parse(window),
            )

        assert shown_by(view(cast.alice, "/dashboards/"), fleet_tier).count(f'"{SHOWN}"') == 2
        platform = platform_tier.DASHBOARD.refresh(view(cast.olivia, "/dashboards/platform"))
    assert f'"{SHOWN}"' in to_json_plotly(platform["stats"])
    chart = json.loads(to_json_plotly(platform["hours"]))
    assert [bar["name"] for bar in chart["data"]] == ["Acme"]
    assert f"{GPU_HOURS:.4f}"[:4] in to_json_plotly(chart["data"][0]["y"])


def test_the_command_line_prints_the_same_gpu_hours(environ_of: EnvironOf, cast: Cast) -> None:
    environ = environ_of(cast.bob)
    printed = run_vedette("usage", environ=environ).stdout.splitlines()
    assert printed[1].split()[1] == SHOWN


def test_a_jobs_page_shows_the_same_gpu_hours(app: Flask, cast: Cast) -> None:
    alice = browser(app, cast.alice)
    [job] = alice.get("/api/v1/jobs").get_json()["items"]
    efficiency = alice.get(f"/api/v1/jobs/{job['id']}/efficiency").get_json()
    assert efficiency["allocated_gpu_seconds"] / 3600 == pytest.approx(GPU_HOURS)


def test_gpus_allocated_now_are_counted_the_same(app: Flask, cast: Cast) -> None:
    page = texts(browser(app, cast.alice).get("/gpu-usage").text)
    assert page[page.index("Now") + 1 :][:2] == ["2", "GPUs allocated to 1 job"]

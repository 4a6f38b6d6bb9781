"""A newcomer's first hour: dashboards in tiers, an alert, a job with its log, a new tenant."""

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import Message

import pytest
from playwright.sync_api import Page, expect

from tests.deployment import ALICE, BOB, CHARLIE, OLIVIA
from tests.e2e.conftest import Demo, screenshot
from tests.e2e.inboxes import link_in_mail_to
from tests.fixtures.polling import eventually

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_chromium,
    pytest.mark.timeout(240),
]
SignIn = Callable[..., Page]
SLOW_MS = 60_000


def test_bob_goes_from_the_fleet_to_an_appliance_to_a_gpu(sign_in: SignIn) -> None:
    page = sign_in(BOB)

    card = page.get_by_role("link", name="dgx-02", exact=True)
    expect(card).to_be_visible(timeout=SLOW_MS)
    expect(page.locator("#fleet-power .scatterlayer path.js-line").first).to_be_attached()
    screenshot(page, "1-fleet")

    card.click()
    expect(page.get_by_role("heading", name="dgx-02")).to_be_visible()
    expect(page.locator(".js-plotly-plot .scatterlayer path.js-line").first).to_be_attached()
    screenshot(page, "2-appliance")

    page.locator("a[href*='/gpus/3']").first.click()
    expect(page).to_have_url(re.compile(r"/gpus/3"))
    expect(page.locator(".js-plotly-plot .scatterlayer path.js-line").first).to_be_attached()
    screenshot(page, "3-gpu")


def test_the_past_of_the_demo_has_the_sample_interval_of_its_present(
    demo: Demo, sign_in: SignIn
) -> None:
    page = sign_in(BOB)
    query = "measurement=cpu&fields=usage_percent&aggregate=count&step=1m&group_by=appliance"

    def samples_a_minute(since: str, until: str) -> set[float]:
        """Return the numbers of samples a minute, without those of minutes that are cut."""
        answer = page.request.get(f"{demo.url}/api/v1/query?{query}&since={since}&until={until}")
        groups = answer.json()["items"]
        return {
            count for group in groups for count in group["values"]["usage_percent"][1:-1] if count
        }

    eventually(
        lambda: samples_a_minute("-50m", "-40m") == {6.0},
        within_seconds=SLOW_MS / 1000,
        what="the history to have a sample each ten seconds",
    )
    started_at = (demo.data_dir / "fleet/acme/dgx-01/started").stat().st_mtime
    present = f"{datetime.fromtimestamp(started_at + 60, tz=UTC):%Y-%m-%dT%H:%M:%SZ}"
    eventually(
        lambda: time.time() > started_at + 60 and 6.0 in samples_a_minute(present, "now"),
        # Two minutes after the fleet a whole minute begins, which counts once the next has samples.
        within_seconds=5 * SLOW_MS / 1000,
        what="the present to have a sample each ten seconds",
    )


def test_bob_drags_over_a_chart_and_every_chart_shows_that_stretch_until_he_leaves_it(
    sign_in: SignIn,
) -> None:
    page = sign_in(BOB)
    chart = page.locator("#fleet-power .nsewdrag")
    expect(page.locator("#fleet-power .scatterlayer path.js-line").first).to_be_attached()
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, height)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, height, steps=5)
    page.mouse.up()
    page.wait_for_url("**from=*")
    page.reload()
    chosen = page.locator("#range")
    expect(chosen).to_contain_text("IST")
    page.wait_for_function(
        "() => new Set([...document.querySelectorAll('.js-plotly-plot')]"
        ".map(chart => String(chart.layout.xaxis.range))).size === 1"
    )
    screenshot(page, "11-window")

    page.get_by_role("button", name="Zoom out").click()
    expect(chosen).to_contain_text("IST")
    chosen.click()
    page.get_by_role("link", name="Last 6 h", exact=True).click()
    expect(chosen).to_have_text("Last 6 h")
    assert "from=" not in page.url


def test_alice_is_told_by_mail_and_webhook_when_a_rule_fires_and_resolves(
    demo: Demo, sign_in: SignIn
) -> None:
    page = sign_in(ALICE, path="/receivers")
    _add_receiver(page, demo, kind="email", name="On call", target="oncall@acme.example")
    _add_receiver(page, demo, kind="webhook", name="Chat", target=demo.webhook.url)

    page.goto(f"{demo.url}/rules/new")
    page.get_by_label("Name").fill("Any GPU has a temperature")
    page.locator("[name=metric]").fill("gpu.temperature_celsius")
    page.locator("[name=window_seconds]").fill("30s")
    page.locator("[name=filters]").fill("gpu=0")
    page.locator("[name=warning_threshold]").fill("1")
    page.locator("[name=for_seconds]").fill("3s")
    page.get_by_label("On call").check()
    page.get_by_label("Chat").check()
    page.get_by_role("button", name="Test rule").click()
    # The chart has the name in a title too, which is never visible.
    expect(page.get_by_text("dgx-01").locator("visible=true").first).to_be_visible()
    screenshot(page, "4-rule")
    page.get_by_role("button", name="Save rule").click()

    page.goto(f"{demo.url}/alerts")
    rows = page.get_by_role("row").filter(has_text="Any GPU has a temperature")
    expect(rows.first).to_contain_text(re.compile("pending|firing"), timeout=SLOW_MS)
    expect(rows.first).to_contain_text("firing", timeout=SLOW_MS)
    screenshot(page, "5-alerts")

    def mails() -> list[Message]:
        # Those of tickets go to others.
        return [mail for mail in demo.mail.messages if mail["To"] == "oncall@acme.example"]

    eventually(mails, within_seconds=60, what="a mail")
    eventually(lambda: demo.webhook.calls, within_seconds=60, what="a call of the webhook")

    page.goto(f"{demo.url}/rules")
    page.get_by_role("link", name="Any GPU has a temperature").first.click()
    page.locator("[name=warning_threshold]").fill("900")
    page.get_by_role("button", name="Save rule").click()
    eventually(
        lambda: [call for call in demo.webhook.calls if b'"resolved"' in call.body],
        within_seconds=60,
        what="the webhook to hear that it is resolved",
    )

    assert "Any GPU has a temperature" in mails()[0]["Subject"]
    call = demo.webhook.calls[0]
    assert call.headers["x-vedette-signature"].startswith("sha256=")
    assert json.loads(call.body)["state"] == "firing"


def test_bob_runs_a_job_follows_its_log_and_stops_it(sign_in: SignIn) -> None:
    page = sign_in(BOB, path="/jobs/new")
    page.get_by_label("Name").fill("first-light")
    page.get_by_label("Container image").fill("acme/train:1")
    page.locator("[name=command]").fill("python train.py --lr 3e-4")
    page.locator("[name=env]").fill("SIM_SECONDS=600")
    page.get_by_label("GPUs", exact=True).fill("2")
    page.get_by_role("button", name="Submit job").click()

    log = page.locator("[data-log-text]")
    expect(page.get_by_role("heading", name="first-light")).to_be_visible()
    expect(log).to_contain_text("epoch 0 step 50", timeout=SLOW_MS)
    expect(log).to_contain_text("epoch 0 step 100", timeout=SLOW_MS)  # it goes on by itself
    charts = page.frame_locator("[data-fit]")
    line = charts.locator("#job-gpu-power_watts .scatterlayer path.js-line").first
    expect(line).to_be_attached(timeout=SLOW_MS)
    screenshot(page, "6-job")

    page.get_by_role("link", name="Dashboard", exact=True).click()
    expect(page.locator(".js-plotly-plot .scatterlayer path.js-line").first).to_be_attached(
        timeout=SLOW_MS
    )
    screenshot(page, "7-job-dashboard")
    page.go_back()

    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the job").click()
    expect(page.locator("[data-live=job-facts]").get_by_text("stopped").first).to_be_visible(
        timeout=SLOW_MS
    )


def test_a_job_that_no_appliance_can_hold_is_refused_with_the_figures(sign_in: SignIn) -> None:
    page = sign_in(BOB, path="/jobs/new")
    page.get_by_label("Name").fill("too-large")
    page.get_by_label("Container image").fill("acme/train:1")
    page.get_by_label("GPUs", exact=True).fill("16")
    page.get_by_role("button", name="Submit job").click()

    expect(page.get_by_text("16 requested")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("too-large")
    screenshot(page, "8-job-refused")


def test_charlie_sees_his_own_fleet_and_nothing_of_acme(demo: Demo, sign_in: SignIn) -> None:
    bob, charlie = sign_in(BOB, path="/appliances"), sign_in(CHARLIE)
    bob.get_by_role("link", name="dgx-01").click()
    path = bob.url.removeprefix(demo.url)

    expect(charlie.get_by_role("link", name="hgx-a1", exact=True)).to_be_visible(timeout=SLOW_MS)
    expect(charlie.get_by_text("dgx-01")).to_have_count(0)
    reply = charlie.goto(demo.url + path)
    assert reply is not None
    assert reply.status == 404
    expect(charlie.get_by_text("dgx-01")).to_have_count(0)


def test_olivia_adds_a_tenant_and_a_user_who_signs_in(demo: Demo, sign_in: SignIn) -> None:
    page = sign_in(OLIVIA, path="/tenants")
    page.get_by_label("Name", exact=True).fill("Initrode")
    page.get_by_role("button", name=re.compile("Add")).click()
    page.goto(f"{demo.url}/tenants")
    page.get_by_role("link", name="Initrode").click()
    page.get_by_label("Email address").fill("dana@initrode.example")
    page.get_by_label("Role").select_option("admin")
    page.get_by_role("button", name="Send invitation").click()
    expect(page.get_by_role("cell", name="dana@initrode.example")).to_be_visible()
    screenshot(page, "9-tenant")

    page.get_by_role("button", name="Account").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login**")
    page.goto(link_in_mail_to(demo.mail, "dana@initrode.example"))
    page.get_by_label("Your name").fill("Dana Admin")
    page.get_by_label("Password", exact=True).fill("a long first password")
    page.get_by_label("Confirm password").fill("a long first password")
    page.get_by_role("button", name="Create account and join").click()
    page.wait_for_url("**/dashboards/**")

    dana = sign_in("dana@initrode.example", "a long first password")
    expect(dana.get_by_text("dgx-01")).to_have_count(0)
    screenshot(dana, "10-empty-fleet")


def _add_receiver(page: Page, demo: Demo, *, kind: str, name: str, target: str) -> None:
    page.goto(f"{demo.url}/receivers")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Type").select_option(kind)
    page.get_by_label("Address").fill(target)
    page.get_by_role("button", name=re.compile("Add")).click()
    expect(page.get_by_role("row").filter(has_text=name)).to_be_visible()

"""A provider whose appliance lies sees in the browser why it is refused.

Server, agents and Chromium are real; the GPUs are simulated, and those of the liar are fewer and
smaller than its inventory says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from tests.deployment import (
    ALICE,
    OLIVIA,
    Deployment,
    agent_of,
    api_token,
    make_deployment,
    serving,
)
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import sign_in
from tests.fixtures.file_modes import no_umask
from tests.fixtures.polling import eventually
from tests.integration.test_jobs import QUICK, enroll

pytestmark = [pytest.mark.nightly, pytest.mark.needs_chromium, pytest.mark.timeout(600)]

SETTINGS = {"VEDETTE_MARKETPLACE": "true", "VEDETTE_VERIFICATION_ACCEPTS_SIMULATED": "true"}
NAMES = ["honest", "liar"]
# Order, challenge, arrival of its samples.
VERIFIED_WITHIN_SECONDS = 300


@dataclass
class Site:
    """A portal with an honest appliance and a lying one, which both are in an offer."""

    deployment: Deployment
    token: str

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        reply = requests.get(
            f"{self.deployment.url}/api/v1{path}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
        )
        assert reply.status_code == 200, reply.text
        return reply.json()

    def is_ready(self) -> bool:
        """Return whether jobs could start on both appliances."""
        items = self.get("/appliances")["items"]
        inventories = [self.get(f"/appliances/{item['id']}")["inventory"] for item in items]
        ready = [inventory for inventory in inventories if inventory.get("executors")]
        return len(ready) == len(NAMES)

    def states(self) -> dict[str, str]:
        items = self.get("/market/verifications")["items"]
        return {item["name"]: item["state"] for item in items}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("deployment")
    deployment = make_deployment(folder)
    toml = f'{QUICK}executor = "simulated"\n'
    with no_umask(), serving(deployment, environ=SETTINGS):
        homes = {name: folder / name for name in NAMES}
        for name, home in homes.items():
            enroll(deployment, home, name)
        liar = agent_of(
            deployment, home=homes["liar"], toml=toml, module="tests.fixtures.lying_agent"
        )
        with agent_of(deployment, home=homes["honest"], toml=toml), liar:
            site = Site(deployment, api_token(deployment, ALICE))
            eventually(site.is_ready, within_seconds=90)
            _offer(site, api_token(deployment, OLIVIA))
            yield site


def _offer(site: Site, operator_token: str) -> None:
    """Admit acme, and publish an offer of both appliances."""
    url = f"{site.deployment.url}/api/v1"
    admission = {"side": "provider", "state": "active"}
    tenant_id = site.get("/me")["tenant_id"]
    body = {
        "name": "H100 in Oslo",
        "appliance_ids": NAMES,
        "terms": {"currency": "EUR", "price": "2.45"},
    }
    for token, path, content in (
        (operator_token, f"/market/accounts/{tenant_id}/admission", admission),
        (site.token, "/market/offers", body),
    ):
        headers = {"Authorization": f"Bearer {token}"}
        reply = requests.post(f"{url}{path}", json=content, headers=headers, timeout=60)
        assert reply.status_code in {200, 201}, reply.text
    publish = f"{url}/market/offers/{reply.json()['id']}/publish"
    assert requests.post(publish, headers=headers, timeout=60).status_code == 200


@pytest.fixture
def page(site: Site, chromium: Browser) -> Iterator[Page]:
    problems: list[str] = []
    context = chromium.new_context(base_url=site.deployment.url)
    context.set_default_timeout(STEP_MS)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    sign_in(page, ALICE)
    yield page
    context.close()
    assert problems == []


def test_a_lying_appliance_is_refused_with_the_reason(site: Site, page: Page) -> None:
    page.goto("/provider")
    left_out = page.get_by_role("region", name="Left out of offers")
    expect(left_out.get_by_role("link", name="liar")).to_be_visible()
    expect(left_out.get_by_role("link", name="honest")).to_be_visible()
    eventually(
        lambda: site.states() == {"honest": "passed", "liar": "failed"},
        within_seconds=VERIFIED_WITHIN_SECONDS,
    )
    page.goto("/provider")
    expect(left_out).to_contain_text("38.8 GiB could be filled")
    expect(left_out.get_by_role("link", name="honest")).to_have_count(0)
    screenshot(page, "verification-provider")
    left_out.get_by_role("link", name="liar").click()
    findings = page.get_by_role("region", name="Findings")
    for sign in ("memory missing", "gpu missing", "too slow"):
        expect(findings).to_contain_text(sign)
    expect(findings).to_contain_text("End other processes on the GPU")
    screenshot(page, "verification-liar")
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_text("liar is verified as soon as it has no jobs")).to_be_visible()
    page.get_by_role("link", name="Appliance", exact=True).click()
    expect(page.get_by_role("region", name="Verification")).to_contain_text("could be filled")
    # The catalogue follows within a minute.
    eventually(
        lambda: [item["gpus"] for item in site.get("/market/capacity")["items"]] == [8],
        within_seconds=90,
    )
    page.goto("/market")
    expect(page.locator("main")).to_contain_text("H100 in Oslo")

"""The line of *Appliances → Add* turns this machine into an appliance, in a scratch folder.

The packages are those of this environment, so that nothing is downloaded from the internet.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from tests.deployment import ALICE, Deployment, make_deployment, serving
from tests.e2e.conftest import STEP_MS
from tests.e2e.walking import sign_in
from tests.servers import require_root, running

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_root,
    pytest.mark.needs_chromium,
    pytest.mark.timeout(240),
]
NAME = "dgx-07"


@dataclass(frozen=True, slots=True)
class Host:
    """A folder for all that the script installs, and the portal that it comes from."""

    home: Path
    deployment: Deployment

    @property
    def software(self) -> Path:
        return self.home / "software"

    def install(self, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
        """Run the script as the one line of the page does."""
        options = ["--no-service", "--prefix", str(self.software), "--name", NAME]
        options += ["--data-dir", str(self.home / "data"), "--python", sys.executable]
        options += ["--user", psutil.Process().username(), *arguments]
        script = requests.get(f"{self.deployment.url}/install", timeout=60).text
        return subprocess.run(
            ["/bin/sh", "-s", "--", *options, *([token] if token else [])],
            input=script,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    require_root("installs as root")
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    built = deployment.process("wheelhouse", "build", "--offline")
    assert built.returncode == 0, built.stderr
    with serving(deployment):
        yield Host(tmp_path_factory.mktemp("host"), deployment)


@pytest.fixture
def add_page(host: Host, chromium: Browser) -> Iterator[Page]:
    """The page on which alice has created a token for one host."""
    context = chromium.new_context(base_url=host.deployment.url)
    context.set_default_timeout(STEP_MS)
    page = context.new_page()
    sign_in(page, ALICE)
    page.goto("/appliances/new")
    page.get_by_role("button", name="Create token").click()
    yield page
    context.close()


def test_the_page_waits_until_its_line_has_made_an_appliance_whose_samples_arrive(
    host: Host, add_page: Page
) -> None:
    line = add_page.locator(".vd-command code").first.inner_text()
    token = line.split()[-1]
    expect(add_page.get_by_text("Waiting for the host")).to_be_visible()
    previewed = host.install("--dry-run", token=token)
    left = list(host.home.iterdir())

    installed = host.install(token=token)
    command = shlex.split(installed.stdout.splitlines()[-1].partition(": ")[2])
    expect(add_page.get_by_text(f"{NAME} has enrolled")).to_be_visible()
    log_path = host.home / "agent.log"
    with running(command, log_path=log_path, environ={"PATH": os.environ["PATH"]}):
        waited = subprocess.run(
            [*command[:2], "wait", *command[3:]], capture_output=True, text=True, check=False
        )
        expect(add_page.get_by_text(f"{NAME} is online")).to_be_visible()

    assert line == f"curl -fsS {host.deployment.url}/install | sudo sh -s -- {token}"
    assert previewed.returncode == 0, previewed.stderr
    assert left == []
    assert installed.returncode == 0, installed.stderr
    assert token not in installed.stdout + installed.stderr
    assert waited.returncode == 0, waited.stderr
    assert waited.stdout.startswith(f"{host.deployment.url}/appliances/")


def test_a_second_run_changes_nothing_and_needs_no_token(host: Host) -> None:
    installed_before = (host.software / "venv").readlink()

    second = host.install()

    assert second.returncode == 0, second.stderr
    assert "→" not in second.stdout
    assert (host.software / "venv").readlink() == installed_before


def test_packages_that_were_changed_are_refused_and_the_old_version_stays(host: Host) -> None:
    version_before = (host.software / "venv").readlink()
    stamp, stamp_before = host.software / "installed", (host.software / "installed").read_text()
    stamp.write_text("an older version\n")
    requirements = host.deployment.data_dir / "wheelhouse" / "requirements.txt"
    right = requirements.read_text()
    requirements.write_text(right.replace("sha256:", "sha256:0", 1))

    refused = host.install()
    requirements.write_text(right)
    stamp.write_text(stamp_before)

    assert refused.returncode == 1
    assert "list of packages" in refused.stderr
    assert (host.software / "venv").readlink() == version_before


def test_a_token_that_the_portal_rejects_leaves_what_a_next_run_continues(host: Host) -> None:
    fresh = Host(host.home / "second", host.deployment)
    fresh.home.mkdir()
    fresh.software.symlink_to(host.software)

    refused = fresh.install(token="vde_wrong")
    enrolled = fresh.install(token=host.deployment.enrollment_secret("acme"))

    assert refused.returncode == 1
    assert "rejects this token" in refused.stderr
    assert "/appliances/new" in refused.stderr
    assert enrolled.returncode == 0, enrolled.stderr


def test_uninstalling_keeps_the_data_unless_told_otherwise(host: Host) -> None:
    data_dir = host.home / "data"

    previewed = host.install("--uninstall", "--dry-run")
    removed = host.install("--uninstall", "--remove-data")

    assert previewed.returncode == removed.returncode == 0, previewed.stderr + removed.stderr
    assert f"Would remove {data_dir}" not in previewed.stdout
    assert f"Remove {data_dir}" in removed.stdout
    assert not data_dir.exists()
    assert not host.software.exists()

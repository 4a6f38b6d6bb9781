"""A server whose disk is really full: it says so, refuses changes, and goes on with room again."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from tests.deployment import ALICE, BOB, Deployment, api_token, make_deployment, serving
from tests.fixtures.polling import eventually
from tests.servers import require_program, require_root

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(120)]

JOB = {"name": "train", "image": "acme/train:1"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    require_root("mounts a file system")
    mount = require_program("mount", package="mount")
    unmount = require_program("umount", package="mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run([mount, "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run([unmount, "--lazy", folder], check=True)


def test_a_full_disk_is_reported_and_refuses_changes_until_there_is_room(disk: Path) -> None:
    deployment = make_deployment(disk / "server")
    with serving(deployment):
        headers = {"Authorization": f"Bearer {api_token(deployment, ALICE)}"}
        _fill(disk / "other")

        eventually(lambda: _health(deployment).status_code == 503, what="/health to notice")
        eventually(lambda: _submit(deployment, headers).status_code != 201, what="a full database")
        health, job = _health(deployment), _submit(deployment, headers)
        sign_in = _sign_in(deployment)

        assert health.json()["code"] == "disk_unavailable"
        assert "No space left" in health.json()["message"]
        assert (job.status_code, sign_in.status_code) == (503, 503)
        assert int(job.headers["Retry-After"]) > 0
        assert "The database is busy or unavailable" in sign_in.text
        assert "Traceback" not in deployment.log("server")

        (disk / "other").unlink()
        eventually(lambda: _health(deployment).ok, what="/health to recover")
        assert _submit(deployment, headers).status_code == 201
        assert _sign_in(deployment).status_code == 302


def _fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def _health(deployment: Deployment) -> requests.Response:
    return requests.get(f"{deployment.url}/health", timeout=60)


def _submit(deployment: Deployment, headers: dict[str, str]) -> requests.Response:
    return requests.post(f"{deployment.url}/api/v1/jobs", json=JOB, headers=headers, timeout=60)


def _sign_in(deployment: Deployment) -> requests.Response:
    with requests.Session() as browser:
        page = browser.get(f"{deployment.url}/login", timeout=60).text
        (csrf_token,) = re.findall(r'name="csrf_token"[^>]*value="([^"]+)"', page)
        form = {"email": BOB, "password": DEMO_PASSWORD, "csrf_token": csrf_token}
        return browser.post(f"{deployment.url}/login", data=form, timeout=60, allow_redirects=False)

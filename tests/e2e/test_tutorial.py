"""docs/tutorial.md: its commands work on the demo, and print what the page shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from tests.deployment import BOB
from tests.e2e.conftest import Demo
from tests.fixtures.polling import eventually

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOCAL_URL = "http://127.0.0.1:8000"
# What the page leaves open: part of a line, or any lines.
OPEN = "..."


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command of the page with the output that it shows."""
    for block in BLOCK.findall(PAGE.read_text("utf-8")):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = step.splitlines()
            following = [line[2:] for line in lines[1:] if line.startswith("> ")]
            yield "\n".join([lines[0], *following]), "\n".join(lines[1 + len(following) :])


def wait_for_fleet(demo: Demo) -> None:
    def new_token() -> object:
        body, auth = {"name": "test"}, (BOB, DEMO_PASSWORD)
        reply = requests.post(f"{demo.url}/api/v1/tokens", json=body, auth=auth, timeout=60)
        return reply.json().get("secret")

    token = eventually(new_token, within_seconds=100, what="the accounts of the demo")
    headers = {"Authorization": f"Bearer {token}"}

    def is_online() -> bool:
        url = f"{demo.url}/api/v1/appliances?state=online"
        appliances = requests.get(url, headers=headers, timeout=60).json()["items"]
        return {"dgx-01", "dgx-02"} <= {appliance["name"] for appliance in appliances}

    eventually(is_online, within_seconds=100, what="the fleet to be online")


def test_every_command_prints_what_the_page_shows(demo: Demo, tmp_path: Path) -> None:
    program = tmp_path / "vedette"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
    program.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(PAGE.parents[1]),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    wait_for_fleet(demo)
    for command, shown in steps():
        local = command.replace(LOCAL_URL, demo.url)
        ended = subprocess.run(
            ["/bin/bash", "-c", local],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        pattern = re.escape(shown.replace(LOCAL_URL, demo.url)).replace(re.escape(OPEN), ".*")
        assert re.fullmatch(pattern, ended.stdout.strip(), re.DOTALL), f"{command}\n{ended.stdout}"

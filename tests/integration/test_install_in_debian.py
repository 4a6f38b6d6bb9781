"""The script of `/install` in a Debian that runs systemd: user, Python, service, update, removal.

The Debian is bootstrapped into a folder and booted by systemd-nspawn, on this machine's network.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import psutil
import pytest
import requests

from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.polling import eventually
from tests.servers import require_program, require_root, running
from vedette.client import Client

pytestmark = [pytest.mark.nightly, pytest.mark.needs_root, pytest.mark.timeout(900)]

# That of this Python, whose packages the offline wheelhouse has.
RELEASE = {(3, 11): "bookworm", (3, 13): "trixie"}.get(sys.version_info[:2])
PACKAGES = "ca-certificates,curl,dbus,python3,systemd,systemd-sysv"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT = "vedette-agent.service"
BROKEN = 'raise SystemExit("this build is broken")'


@dataclass(frozen=True, slots=True)
class Machine:
    """A booted Debian, and the portal that it installs the agent from."""

    leader: psutil.Process
    deployment: Deployment

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        enter = ["nsenter", f"--target={self.leader.pid}", "--all", "--root", "--wd=/"]
        return subprocess.run(
            [*enter, "env", "-i", f"PATH={PATH}", "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def install(self, arguments: str = "", *, change: str = "cat") -> str:
        """Run the line of the page; `change` filters the script."""
        line = f"curl -fsS {self.deployment.url}/install | {change} | sh -s -- {arguments}"
        ended = self.run(line)
        return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    require_root("boots a container")
    debootstrap = require_program("debootstrap", package="debootstrap")
    nspawn = require_program("systemd-nspawn", package="systemd-container")
    if RELEASE is None:
        pytest.skip("no release of Debian has this version of Python")
    folder = tmp_path_factory.mktemp("debian")
    made = subprocess.run(
        [debootstrap, "--variant=minbase", f"--include={PACKAGES}", RELEASE, folder / "root"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    deployment = make_deployment(folder / "deployment")
    built = deployment.vedette("wheelhouse", "build", "--offline")
    assert built.returncode == 0, built.stderr
    boot = [nspawn, f"--directory={folder / 'root'}", "--boot", "--register=no", "--keep-unit"]
    with serving(deployment), running(boot, log_path=folder / "boot.log") as container:
        process = psutil.Process(container.pid)
        eventually(process.children, what="the container to start")
        booted = Machine(process.children()[0], deployment)
        eventually(
            lambda: "running" in booted.run("systemctl is-system-running").stdout,
            within_seconds=60,
            what="Debian to boot",
        )
        yield booted


@pytest.fixture(scope="module")
def installed(machine: Machine) -> str:
    """The output of the line that made the machine an appliance."""
    token = machine.deployment.enrollment_secret("acme")
    output = machine.install(f"--name dgx-07 {token}")
    assert token not in output
    assert "✓ Online" in output, output
    return output


def test_the_appliance_is_online_with_the_service_of_an_own_user(
    machine: Machine, installed: str
) -> None:
    token = api_token(machine.deployment, ALICE)
    eventually(
        lambda: _state(machine.deployment, token) == "online", what="the appliance to be online"
    )
    shown = machine.run(f"systemctl show {UNIT} --property=ActiveState,UnitFileState,User").stdout

    assert {"ActiveState=active", "UnitFileState=enabled", "User=vedette"} <= set(shown.split())
    assert re.search(r"→ Install python3\.\d+-venv", installed)
    assert machine.run("cd / && runuser -u vedette -- vedette agent check").returncode == 0


@pytest.mark.usefixtures("installed")
def test_a_second_run_changes_nothing(machine: Machine) -> None:
    output = machine.install()

    assert "✓ Online" in output
    assert "→" not in output


@pytest.mark.usefixtures("installed")
def test_a_version_that_sends_nothing_is_rolled_back(machine: Machine) -> None:
    folder = machine.deployment.data_dir / "wheelhouse"
    good = {path: path.read_bytes() for path in folder.iterdir()}
    rebuild_agent(folder, is_broken=True)

    output = machine.install(change="sed 's/^wait_seconds=.*/wait_seconds=15/'")
    for path in folder.iterdir():
        path.unlink()
    for path, content in good.items():
        path.write_bytes(content)
    restored = machine.install()

    assert "the old one runs again" in output
    assert "this build is broken" in output
    assert "✓ Vedette" in restored
    assert "✓ Online" in restored


@pytest.mark.usefixtures("installed")
def test_a_rollout_updates_the_agent_and_a_broken_version_is_rolled_back(
    machine: Machine,
) -> None:
    folder = machine.deployment.data_dir / "wheelhouse"
    rebuild_agent(folder, version="98.0.0")
    (updated,) = roll_out(machine.deployment)
    rebuild_agent(folder, version="99.0.0", is_broken=True)
    (failed,) = roll_out(machine.deployment)

    assert (updated["state"], updated["agent_version"]) == ("updated", "98.0.0")
    assert (failed["state"], failed["agent_version"]) == ("failed", "98.0.0")
    assert "Version 99.0.0 sent no samples" in failed["message"]
    assert "98.0.0" in machine.run("vedette --version").stdout
    assert machine.run(f"systemctl is-active {UNIT}").stdout.strip() == "active"


@pytest.mark.usefixtures("installed")
def test_uninstalling_leaves_nothing(machine: Machine) -> None:
    removed = machine.run("vedette agent uninstall --remove-data")

    assert removed.returncode == 0, removed.stderr
    left = machine.run(
        "ls -d /opt/vedette /var/lib/vedette /etc/systemd/system/vedette-* /usr/local/bin/vedette;"
        " id vedette; pgrep --uid vedette"
    )
    assert left.stdout == ""


def rebuild_agent(folder: Path, *, version: str = "", is_broken: bool = False) -> None:
    """Replace the wheel of Vedette by another version, or one whose agent ends when it starts."""
    index_path, requirements_path = folder / "wheelhouse.json", folder / "requirements.txt"
    contents, requirements = json.loads(index_path.read_text()), requirements_path.read_text()
    old_wheel = next(folder.glob("vedette-*.whl"))
    before, after = contents["version"], version or contents["version"]
    draft = folder / "draft"
    with ZipFile(old_wheel) as old, ZipFile(draft, "w", ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "cli/agent.py" and is_broken:
                content = content.replace(b"worker.run(stop)", BROKEN.encode())
            if ".dist-info/" in name:
                content = content.replace(
                    f"Version: {before}".encode(), f"Version: {after}".encode()
                )
                content = content.replace(f"-{before}.dist".encode(), f"-{after}.dist".encode())
            new.writestr(name.replace(f"-{before}.dist", f"-{after}.dist"), content)
    old_hash = sha256(old_wheel.read_bytes()).hexdigest()
    old_wheel.unlink()
    new_wheel = draft.replace(folder / old_wheel.name.replace(before, after))
    requirements = requirements.replace(old_hash, sha256(new_wheel.read_bytes()).hexdigest())
    requirements = requirements.replace(f"vedette=={before}", f"vedette=={after}")
    requirements_path.write_text(requirements)
    digest = sha256(requirements.encode()).hexdigest()
    index_path.write_text(json.dumps({**contents, "version": after, "requirements_sha256": digest}))


def roll_out(deployment: Deployment) -> list[dict[str, Any]]:
    """Update all agents to the packages of the portal; return what came of it by appliance."""
    with Client(deployment.url, token=api_token(deployment, ALICE)) as client:
        started = client.post("/agent-rollouts", {"stage_percents": [100], "soak_seconds": 0})
        path = f"/agent-rollouts/{started['id']}"
        eventually(
            lambda: client.get(path)["state"] in {"completed", "paused"},
            within_seconds=240,
            what="the rollout to end",
        )
        if client.get(path)["state"] == "paused":
            client.post(f"{path}/cancel")
        items: list[dict[str, Any]] = client.get(f"{path}/appliances")["items"]
        return items


def _state(deployment: Deployment, token: str) -> str:
    reply = requests.get(
        f"{deployment.url}/api/v1/appliances?search=dgx-07",
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    )
    return str(reply.json()["items"][0]["state"])

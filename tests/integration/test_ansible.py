"""The roll-out: Ansible's own playbook brings the agent onto this machine, into a scratch folder.

The appliance is this machine, over Ansible's local connection. The agent comes from a wheel of
this checkout, in a virtual environment of its own, and joins a real server.
"""

import configparser
import json
import os
import shlex
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from collector.config import load_agent_config
from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.polling import eventually
from tests.servers import running

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
APPLIANCE = "dgx-01"
PLAYBOOK_SECONDS = 280
PLUGINS = {
    "disk": {"interval_seconds": 60, "skip_mounts": ['/mnt/"größe"\\*']},
    "exec": {"programs": [{"command": ["/opt/ups", "--once"], "environment": {"UPS": "a, {b}"}}]},
}


@dataclass(frozen=True, slots=True)
class RollOut:
    """An inventory of one appliance, this machine, whose every path lies in `home`."""

    home: Path

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    @property
    def unit_path(self) -> Path:
        return self.home / "units" / "vedette-agent.service"

    def play(self, playbook: str, **variables: object) -> subprocess.CompletedProcess[str]:
        """Run a playbook; `variables` win over the inventory's."""
        extra = ["--extra-vars", json.dumps(variables)] if variables else []
        inventory = str(self.home / "inventory.json")
        return subprocess.run(
            [str(_program("ansible-playbook")), playbook, "--inventory", inventory, *extra],
            cwd=ROOT / "ansible",
            env=self.environ(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PLAYBOOK_SECONDS,
            check=False,
        )

    def environ(self) -> dict[str, str]:
        """An environment in which Vedette is found only where it was installed."""
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return variables | {
            "ANSIBLE_CONFIG": str(ROOT / "ansible" / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.home / "ansible"),
            "ANSIBLE_VERBOSITY": "3",
            "LC_ALL": "C.UTF-8",
        }

    def start_command(self) -> list[str]:
        """The command that systemd runs, from the unit that the playbook wrote."""
        unit = configparser.RawConfigParser(strict=False)
        unit.read(self.unit_path, encoding="utf-8")
        return shlex.split(unit["Service"]["ExecStart"])


@dataclass(frozen=True, slots=True)
class Installed:
    """A deployment with one appliance that the playbook has enrolled."""

    deployment: Deployment
    roll_out: RollOut
    first_run: subprocess.CompletedProcess[str]
    token: str

    def ask(self, method: str, path: str, body: object = None) -> list[dict[str, str]]:
        """Return the items that the portal's REST API answers alice."""
        reply = requests.request(
            method,
            f"{self.deployment.url}/api/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
        )
        assert reply.status_code == 200, reply.text
        return list(reply.json()["items"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(folder),
            str(ROOT),
        ],
        check=True,
        timeout=120,
    )
    return next(folder.glob("vedette-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    roll_out = make_roll_out(
        tmp_path_factory.mktemp("appliance"), wheel=wheel, portal_url=deployment.url
    )
    with serving(deployment):
        first_run = roll_out.play(
            "agent.yml", vedette_enrollment_token=deployment.enrollment_secret("acme")
        )
        assert first_run.returncode == 0, first_run.stdout + first_run.stderr
        yield Installed(deployment, roll_out, first_run, api_token(deployment, ALICE))


def make_roll_out(home: Path, *, wheel: Path, portal_url: str) -> RollOut:
    """Write the inventory of an appliance in `home`."""
    (home / "units").mkdir()
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "vedette_portal_urls": [portal_url],
        "vedette_wheel": str(wheel),
        "vedette_pip_args": ["--constraint", str(ROOT / "requirements" / "server.txt")],
        "vedette_python": sys.executable,
        "vedette_install_dir": str(home / "software"),
        "vedette_data_dir": str(home / "data"),
        "vedette_unit_dir": str(home / "units"),
        "vedette_manage_user": False,
        "vedette_manage_service": False,
        "vedette_user": psutil.Process().username(),
        "vedette_group": str(os.getgid()),
        "vedette_interval_seconds": 0.5,
        "vedette_settings": {"heartbeat_interval_seconds": 1, "executor": "none"},
        "vedette_plugins": PLUGINS,
    }
    inventory = {"appliances": {"hosts": {APPLIANCE: variables}}}
    (home / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")
    return RollOut(home)


def test_the_agent_that_the_unit_starts_is_online_and_its_samples_arrive(
    installed: Installed,
) -> None:
    roll_out = installed.roll_out
    before = _states(installed)
    with running(
        roll_out.start_command(),
        log_path=roll_out.home / "agent.log",
        environ=roll_out.environ(),
    ):
        eventually(
            lambda: _states(installed) == {APPLIANCE: "online"},
            within_seconds=60,
            what="the appliance to be online",
        )
        eventually(lambda: _loads(installed), within_seconds=60, what="samples of the load")

    assert before == {APPLIANCE: "enrolled"}


def test_a_second_run_changes_nothing(installed: Installed) -> None:
    second_run = installed.roll_out.play("agent.yml")

    assert second_run.returncode == 0, second_run.stdout
    assert "changed=0" in second_run.stdout


def test_the_token_is_in_no_output(installed: Installed) -> None:
    assert "vde_" not in installed.first_run.stdout + installed.first_run.stderr


def test_only_the_agents_user_can_read_its_data(installed: Installed) -> None:
    data_dir = installed.roll_out.data_dir

    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((data_dir / "identity.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((data_dir / "agent.toml").stat().st_mode) == 0o600


def test_settings_reach_the_agent_as_they_stand_in_the_inventory(installed: Installed) -> None:
    config = load_agent_config(installed.roll_out.data_dir / "agent.toml")

    assert config.plugins == PLUGINS
    assert (config.name, config.executor) == (APPLIANCE, "none")


def test_a_setting_with_a_typo_is_refused_and_the_old_file_stays(installed: Installed) -> None:
    config_path = installed.roll_out.data_dir / "agent.toml"
    before = config_path.read_text(encoding="utf-8")

    refused = installed.roll_out.play("agent.yml", vedette_settings={"heartbeat_intervall": 1})

    assert refused.returncode != 0
    assert "did you mean heartbeat_interval_seconds?" in refused.stdout
    assert config_path.read_text(encoding="utf-8") == before


def test_another_build_of_the_same_version_replaces_the_first(
    installed: Installed, wheel: Path, tmp_path: Path
) -> None:
    rebuilt = _rebuilt(wheel, tmp_path, line="BUILD = 2")

    upgraded = installed.roll_out.play("agent.yml", vedette_wheel=str(rebuilt))
    lines = next(installed.roll_out.home.rglob("site-packages/cli/__init__.py")).read_text()
    restored = installed.roll_out.play("agent.yml")

    assert upgraded.returncode == restored.returncode == 0
    assert "BUILD = 2" in lines


def test_a_python_that_is_too_old_is_named(installed: Installed, tmp_path: Path) -> None:
    old_python = tmp_path / "python3.10"
    old_python.write_text("#!/bin/sh\necho 3.10\n", encoding="utf-8")
    old_python.chmod(0o755)

    refused = installed.roll_out.play("agent.yml", vedette_python=str(old_python))

    assert refused.returncode != 0
    assert f"on {APPLIANCE} is Python 3.10" in " ".join(refused.stdout.split())
    assert "needs Python 3.11 or newer" in " ".join(refused.stdout.split())


def test_removing_takes_the_software_and_asks_before_it_takes_the_data(
    wheel: Path, tmp_path: Path
) -> None:
    roll_out = make_roll_out(tmp_path, wheel=wheel, portal_url="https://portal.example.com")
    for path in (roll_out.home / "software" / "venv", roll_out.data_dir / "buffer"):
        path.mkdir(parents=True)
    roll_out.unit_path.touch()

    first_run = roll_out.play("remove.yml")
    left_first = sorted(path.name for path in roll_out.home.glob("[dsu]*"))
    removed = roll_out.play("remove.yml", vedette_remove_data=True)

    assert first_run.returncode == removed.returncode == 0, first_run.stdout + removed.stdout
    assert left_first == ["data", "units"]
    assert sorted(path.name for path in roll_out.home.glob("[dsu]*")) == ["units"]
    assert not roll_out.unit_path.exists()


def _states(installed: Installed) -> dict[str, str]:
    return {
        appliance["name"]: appliance["state"] for appliance in installed.ask("GET", "/appliances")
    }


def _loads(installed: Installed) -> list[dict[str, str]]:
    """Return what a rule on the load would see: one group as soon as samples have arrived."""
    rule = {"name": "load", "measurement": "load", "field": "load1", "critical_threshold": 1e9}
    return installed.ask("POST", "/rules/preview", rule)


def _rebuilt(wheel: Path, folder: Path, *, line: str) -> Path:
    """Return a wheel of the same name whose `cli` has one more line."""
    rebuilt = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(rebuilt, "w") as new:
        for name in old.namelist():
            addition = f"{line}\n".encode() if name == "cli/__init__.py" else b""
            new.writestr(name, old.read(name) + addition)
    return rebuilt


def _program(name: str) -> Path:
    return Path(sys.executable).with_name(name)

"""The systemd units, the agent's as its command prints it."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.in_process import run_vedette

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy" / "systemd"
NAMES = ("vedette-agent.service", "vedette-server.service")


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all units: the server's file, and the agent's as its command prints it."""
    folder = tmp_path_factory.mktemp("units")
    shutil.copy(DEPLOY / "vedette-server.service", folder)
    printed = run_vedette("agent", "unit", "--program", "/opt/vedette/venv/bin/vedette")
    (folder / "vedette-agent.service").write_text(printed.stdout, encoding="utf-8")
    return folder


def read_unit(path: Path) -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's keys have capitals
    unit.read(path, encoding="utf-8")
    return unit


def test_the_agents_unit_runs_it_as_its_user_in_its_data_folder() -> None:
    options = ["--user", "gpu", "--program", "/srv/bin/vedette", "--data-dir", "/srv/data"]

    unit = configparser.RawConfigParser(strict=False)
    unit.read_string(run_vedette("agent", "unit", *options).stdout)

    service = unit["Service"]
    assert service["ExecStart"] == "/srv/bin/vedette agent run --data-dir /srv/data"
    assert (service["User"], service["Group"]) == ("gpu", "gpu")
    assert service["ReadWritePaths"] == "/srv/data"
    assert unit["Unit"]["ConditionPathExists"] == "/srv/data/identity.json"


def test_the_agents_unit_leaves_devices_open_for_nvml(units: Path) -> None:
    service = read_unit(units / "vedette-agent.service")["Service"]

    assert not {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"} & set(service)


def test_the_servers_unit_writes_where_its_environment_says(units: Path) -> None:
    service = read_unit(units / "vedette-server.service")["Service"]
    environment = (DEPLOY / "server.env.example").read_text(encoding="utf-8")

    assert f"VEDETTE_DATA_DIR=/var/lib/{service['StateDirectory']}\n" in environment


@pytest.mark.parametrize("name", NAMES)
def test_systemd_knows_every_line_of_a_unit(units: Path, name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: install the Debian package systemd")
    unit_path = tmp_path / name
    text = (units / name).read_text(encoding="utf-8")
    command = read_unit(units / name)["Service"]["ExecStart"]
    unit_path.write_text(text.replace(command, "/bin/true"), encoding="utf-8")

    checked = subprocess.run(
        [program, "verify", str(unit_path)], capture_output=True, text=True, check=False
    )

    assert name not in checked.stderr
    assert checked.returncode == 0, checked.stderr

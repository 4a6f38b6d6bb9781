"""The systemd units, as their commands print them."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from collector.config import AgentConfig
from core.settings import ServerSettings
from tests.fixtures.in_process import run_vedette

DATA_DIR = "/var/lib/vedette-server"
NAMES = (
    "vedette-agent.service",
    "vedette-agent-update.service",
    "vedette-agent-update.path",
    "vedette-server.service",
)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all units."""
    folder = tmp_path_factory.mktemp("units")
    options = ["--program", "/opt/vedette/venv/bin/vedette", "--updates", "/opt/vedette/updates"]
    options += ["--portal-url", "https://portal.example.com"]
    for name in NAMES[:-1]:
        printed = run_vedette("agent", "unit", "--name", name, *options)
        (folder / name).write_text(printed.stdout, encoding="utf-8")
    server = run_vedette("server", "unit", environ={"VEDETTE_DATA_DIR": DATA_DIR})
    (folder / NAMES[-1]).write_text(server.stdout, encoding="utf-8")
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


@pytest.mark.parametrize("folder", ["/srv/my data", "/srv/100%", "/srv/$HOME"])
def test_a_path_that_systemd_would_change_is_refused(folder: str) -> None:
    refused = run_vedette("agent", "unit", "--data-dir", folder)

    assert refused.returncode == 1
    assert "can't be in a systemd unit" in refused.stderr


def test_the_update_service_runs_when_the_agent_has_an_order(units: Path) -> None:
    agent, path, service = (
        read_unit(units / f"vedette-agent{name}")
        for name in (".service", "-update.path", "-update.service")
    )

    assert agent["Service"]["ExecStart"].endswith(" --updates /opt/vedette/updates")
    assert path["Path"]["PathExists"] == "/var/lib/vedette/update-order.json"
    assert path["Path"]["Unit"] == "vedette-agent-update.service"
    assert "User" not in service["Service"]
    assert "--portal-url https://portal.example.com" in service["Service"]["ExecStart"]
    refused = run_vedette("agent", "unit", "--name", "vedette-agent-update.service")
    assert "--portal-url" in refused.stderr


def test_the_agents_unit_leaves_devices_open_for_nvml(units: Path) -> None:
    service = read_unit(units / "vedette-agent.service")["Service"]

    assert not {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"} & set(service)


def test_the_servers_unit_reads_folders_with_any_character_as_they_are(tmp_path: Path) -> None:
    environ = {"VEDETTE_DATA_DIR": '/srv/my "data"/50%', "VEDETTE_BACKUP_URL": "/mnt/two words"}
    path = tmp_path / "vedette-server.service"
    path.write_text(run_vedette("server", "unit", environ=environ).stdout, encoding="utf-8")
    written = '"/srv/my \\"data\\"/50%%" "-/mnt/two words"'
    assert read_unit(path)["Service"]["ReadWritePaths"] == written


def test_the_servers_unit_writes_its_data_and_may_open_a_file_for_each_connection(
    units: Path,
) -> None:
    service = read_unit(units / "vedette-server.service")["Service"]

    assert service["ReadWritePaths"] == DATA_DIR
    assert int(service["LimitNOFILE"]) > ServerSettings().max_connections + 512


@pytest.mark.parametrize("name", NAMES)
def test_systemd_knows_every_line_of_a_unit(units: Path, name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: install the Debian package systemd")
    for path in units.iterdir():  # a unit names another
        text = re.sub(r"(?m)^ExecStart=.*", "ExecStart=/bin/true", path.read_text(encoding="utf-8"))
        (tmp_path / path.name).write_text(text, encoding="utf-8")

    checked = subprocess.run(
        [program, "verify", str(tmp_path / name)], capture_output=True, text=True, check=False
    )

    assert name not in checked.stderr
    assert checked.returncode == 0, checked.stderr


DIRECTORIES = f"{AgentConfig().mps_dir.name} wireguard"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("docs/gpu-slices.md", {"User": "vedette", "AmbientCapabilities": "CAP_SYS_ADMIN"}),
        (
            "cli/vedette-agent-privileged.conf",
            {"User": "root", "KillMode": "process", "RuntimeDirectory": DIRECTORIES},
        ),
    ],
)
def test_lines_that_give_the_agent_rights_fit_its_unit(
    units: Path, tmp_path: Path, source: str, expected: dict[str, str]
) -> None:
    lines = (Path(__file__).parents[3] / source).read_text(encoding="utf-8")
    if source.endswith(".md"):
        lines = lines.partition("```ini\n")[2].partition("```")[0]
    unit = (units / NAMES[0]).read_text(encoding="utf-8") + lines
    path = tmp_path / NAMES[0]
    path.write_text(re.sub(r"(?m)^ExecStart=.*", "ExecStart=/bin/true", unit), encoding="utf-8")

    service = read_unit(path)["Service"]
    assert expected.items() <= dict(service).items()
    assert "CAP_SYS_ADMIN" in service["CapabilityBoundingSet"]
    program = shutil.which("systemd-analyze")
    if program is not None:
        checked = subprocess.run(
            [program, "verify", path], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr

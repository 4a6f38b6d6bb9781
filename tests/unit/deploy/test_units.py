"""The systemd units: what is installed by hand is what Ansible installs."""

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "deploy" / "systemd"
ROLE = ROOT / "ansible" / "roles" / "agent"


def role_variables() -> dict[str, Any]:
    """Return the role's own variables, those that refer to others filled in."""
    variables: dict[str, Any] = {}
    for path in ("defaults/main.yml", "vars/main.yml"):
        variables |= yaml.safe_load((ROLE / path).read_text(encoding="utf-8"))
    variables["vedette_venv"] = jinja2.Template(variables["vedette_venv"]).render(variables)
    return variables


def read_unit(name: str) -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's keys have capitals
    unit.read(UNITS / name, encoding="utf-8")
    return unit


def test_the_agents_unit_is_ansibles_with_the_roles_defaults() -> None:
    template = (ROLE / "templates" / "vedette-agent.service.j2").read_text(encoding="utf-8")
    rendered = jinja2.Template(template, keep_trailing_newline=True).render(role_variables())

    assert (UNITS / "vedette-agent.service").read_text(encoding="utf-8") == rendered


def test_the_agents_unit_leaves_devices_open_for_nvml() -> None:
    service = read_unit("vedette-agent.service")["Service"]

    assert not {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow"} & set(service)


def test_the_servers_unit_writes_where_its_environment_says() -> None:
    service = read_unit("vedette-server.service")["Service"]
    environment = (UNITS / "server.env.example").read_text(encoding="utf-8")

    assert f"VEDETTE_DATA_DIR=/var/lib/{service['StateDirectory']}\n" in environment


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_knows_every_line_of_a_unit(name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: install the Debian package systemd")
    unit_path = tmp_path / name
    text = (UNITS / name).read_text(encoding="utf-8")
    command = read_unit(name)["Service"]["ExecStart"]
    unit_path.write_text(text.replace(command, "/bin/true"), encoding="utf-8")

    checked = subprocess.run(
        [program, "verify", str(unit_path)], capture_output=True, text=True, check=False
    )

    assert name not in checked.stderr
    assert checked.returncode == 0, checked.stderr

"""`vedette agent wait` and `uninstall`: what they refuse, and what they wait for."""

import sys
import threading
from pathlib import Path

import pytest

from collector.data_dir import Identity, save_identity
from tests.fixtures.in_process import run_vedette

IDENTITY = Identity(appliance_id="a-1", tenant_id="t-1", agent_token="vda_x")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data folder of an enrolled agent."""
    save_identity(tmp_path, IDENTITY)
    (tmp_path / "agent.toml").write_text('portal_urls = ["https://portal.example"]\n')
    (tmp_path / "buffer").mkdir()
    return tmp_path


def test_waiting_ends_when_the_portal_has_acknowledged_samples(data_dir: Path) -> None:
    acknowledge = (data_dir / "buffer" / "cursor.json").write_text
    timer = threading.Timer(0.3, acknowledge, args=["{}"])
    timer.start()

    waited = run_vedette("agent", "wait", "--data-dir", str(data_dir))
    timer.join()

    assert waited.stdout == "https://portal.example/appliances/a-1\n"


def test_waiting_in_vain_says_where_to_look(data_dir: Path) -> None:
    waited = run_vedette("agent", "wait", "--data-dir", str(data_dir), "--seconds", "0")

    assert waited.returncode == 1
    assert "vedette agent check" in waited.stderr


def test_a_program_that_no_script_installed_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "venv" / "bin" / "vedette"
    monkeypatch.setattr(sys, "argv", [str(program)])

    refused = run_vedette("agent", "uninstall", "--dry-run")

    assert refused.returncode == 1
    assert str(program) in refused.stderr


def test_a_folder_that_is_no_agents_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    software, other = tmp_path / "software", tmp_path / "photos"
    other.mkdir()
    software.mkdir()
    (software / "installed").touch()
    monkeypatch.setattr(sys, "argv", [str(software / "venv" / "bin" / "vedette")])

    refused = run_vedette("agent", "uninstall", "--remove-data", "--data-dir", str(other))

    assert refused.returncode == 1
    assert "agent.toml" in refused.stderr
    assert software.exists()
    assert other.exists()

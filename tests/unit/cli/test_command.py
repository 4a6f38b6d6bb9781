"""The command says what is wrong in a line, and never shows a traceback."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.main import COMMANDS, HIDDEN
from cli.up import only_one
from core.errors import ConfigurationError
from tests.servers import free_port

ROOT = Path(__file__).parents[3]


def vedette(*arguments: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    keep = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        env={**keep, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_fault_of_the_configuration_is_named_at_once(tmp_path: Path) -> None:
    result = vedette(
        "server",
        environ={
            "VEDETTE_DATA_DIR": str(tmp_path),
            "VEDETTE_PROT": "9000",
            "VEDETTE_PORTAL_THREADS": "many",
        },
    )

    assert result.returncode == 1
    assert "prot is not a setting; did you mean port?" in result.stderr
    assert "portal_threads = 'many'" in result.stderr
    assert "Traceback" not in result.stderr


def test_commands_without_a_door_load_no_web_framework() -> None:
    code = (
        "import sys, cli.agent, cli.db, cli.job, cli.store, cli.tenant\n"
        "sys.exit(sorted({'access', 'dash', 'flask', 'portal', 'starlette'} & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_a_taken_port_gets_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = vedette(
            "up", environ={"VEDETTE_DATA_DIR": str(tmp_path), "VEDETTE_PORT": str(port)}
        )

    assert result.returncode == 1
    assert f"port {port} on 127.0.0.1 can't be used" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_written_gets_one_clear_line() -> None:
    result = vedette(
        "up", environ={"VEDETTE_DATA_DIR": "/proc/vedette", "VEDETTE_PORT": str(free_port())}
    )

    assert result.returncode == 1
    assert "data_dir /proc/vedette can't be written" in result.stderr
    assert "VEDETTE_DATA_DIR" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_demo_refuses_to_listen_beyond_this_machine(tmp_path: Path) -> None:
    result = vedette(
        "up", "--demo", environ={"VEDETTE_DATA_DIR": str(tmp_path), "VEDETTE_HOST": "192.0.2.1"}
    )

    assert result.returncode == 1
    assert "its logins are public" in result.stderr


def test_a_data_folder_belongs_to_one_start_at_a_time(tmp_path: Path) -> None:
    with (
        only_one(tmp_path),
        pytest.raises(ConfigurationError, match="another `vedette up`"),
        only_one(tmp_path),
    ):
        pass


def test_calling_a_portal_without_a_login_says_how_to_sign_in(tmp_path: Path) -> None:
    result = vedette("job", "list", environ={"XDG_CONFIG_HOME": str(tmp_path)})

    assert result.returncode == 1
    assert "vedette login" in result.stderr


def test_a_portal_that_is_away_is_named(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    result = vedette(
        "job",
        "list",
        environ={
            "XDG_CONFIG_HOME": str(tmp_path),
            "VEDETTE_URL": address,
            "VEDETTE_TOKEN": "vdt_x",
        },
    )

    assert result.returncode == 1
    assert f"{address}/api/v1/jobs does not answer" in result.stderr


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - HIDDEN))
def test_every_command_explains_itself(command: str, tmp_path: Path) -> None:
    result = vedette(command, "--help", environ={"XDG_CONFIG_HOME": str(tmp_path)})

    assert result.returncode == 0
    assert "Usage: vedette" in result.stdout

"""Errors of the command are one line, never a traceback."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS, HIDDEN
from cli.up import exclusive
from core.errors import ConfigurationError
from tests.fixtures.in_process import run_vedette
from tests.servers import free_port

ROOT = Path(__file__).parents[3]


def test_all_configuration_errors_are_reported_together(tmp_path: Path) -> None:
    result = run_vedette(
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


def test_commands_other_than_server_load_no_web_framework() -> None:
    code = (
        "import sys, cli.agent, cli.database, cli.job, cli.store, cli.tenant\n"
        "sys.exit(sorted({'access', 'dash', 'flask', 'portal', 'starlette'} & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


@pytest.mark.nightly
def test_a_server_loads_modules_for_pages_and_files_on_demand() -> None:
    """Also while agents post: a tag that all rows lack needs no `pyarrow.compute`."""
    code = (
        "import sys, cli.server\n"
        "from timeseries.duckdb.store import DuckDBStore\n"
        "from timeseries.points import Point\n"
        "from timeseries.store import write\n"
        "store = DuckDBStore(':memory:')\n"
        "write(store, [Point('gpu', {}, {'power_watts': 1.5}, 1)], identity={'tenant': 'acme'})\n"
        "assert store.writer.schema\n"
        "store.close()\n"
        "late = {'alembic', 'dash', 'dns', 'plotly', 'pyarrow.compute', 'pyarrow.parquet'}\n"
        "late |= {'redis', 'requests', 'segno'}\n"
        "sys.exit(sorted(late & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run_vedette(
            "up", environ={"VEDETTE_DATA_DIR": str(tmp_path), "VEDETTE_PORT": str(port)}
        )

    assert result.returncode == 1
    assert f"port {port} on 127.0.0.1 can't be used" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_read_only_data_directory_is_one_line() -> None:
    result = run_vedette(
        "up", environ={"VEDETTE_DATA_DIR": "/proc/vedette", "VEDETTE_PORT": str(free_port())}
    )

    assert result.returncode == 1
    assert "data_dir /proc/vedette can't be written" in result.stderr
    assert "VEDETTE_DATA_DIR" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_demo_listens_only_on_loopback(tmp_path: Path) -> None:
    result = run_vedette(
        "up", "--demo", environ={"VEDETTE_DATA_DIR": str(tmp_path), "VEDETTE_HOST": "192.0.2.1"}
    )

    assert result.returncode == 1
    assert "its logins are public" in result.stderr


def test_only_one_vedette_up_uses_a_data_directory(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path),
        pytest.raises(ConfigurationError, match="another `vedette up`"),
        exclusive(tmp_path),
    ):
        pass


def test_a_command_without_a_login_explains_how_to_sign_in(tmp_path: Path) -> None:
    result = run_vedette("job", "list", environ={"XDG_CONFIG_HOME": str(tmp_path)})

    assert result.returncode == 1
    assert "vedette login" in result.stderr


def test_an_unreachable_portal_is_named(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    result = run_vedette(
        "job",
        "list",
        environ={
            "XDG_CONFIG_HOME": str(tmp_path),
            "VEDETTE_URL": address,
            "VEDETTE_TOKEN": "vdt_x",
            "VEDETTE_RETRY_SECONDS": "0",
        },
    )

    assert result.returncode == 1
    assert f"{address}/api/v1/jobs does not answer" in result.stderr


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - HIDDEN))
def test_every_command_has_help(command: str, tmp_path: Path) -> None:
    result = run_vedette(command, "--help", environ={"XDG_CONFIG_HOME": str(tmp_path)})

    assert result.returncode == 0
    assert "Usage: vedette" in result.stdout

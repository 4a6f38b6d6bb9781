"""A second host of a portal: `vedette server settings` and the check of what hosts share."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.server_hosts import check_hosts
from core.clock import utc_now
from core.db import create_database_engine, create_session_factory
from core.secretbox import KEY_FILE
from core.settings import ServerSettings
from core.settings_file import read_variables
from tenants.lifecycle.server_processes import note_process
from tenants.models import ServerProcess
from tests.fixtures.in_process import run_vedette
from tests.fixtures.migrated import copy_migrated

SHARED = {
    "DATABASE_URL": "mysql+pymysql://vedette:pass@db.example/vedette",
    "TIMESERIES_URL": "victoriametrics://vm.example:8428",
    "VEDETTE_PROXY_SECRET": "a b='c'",
}


def written(folder: Path, values: dict[str, str]) -> Path:
    file = folder / "server.env"
    data = {"VEDETTE_DATA_DIR": str(folder / "data"), "VEDETTE_INTERNAL_URL": "http://a:8000"}
    (folder / "data").mkdir()
    lines = (f'{name}="{value}"\n' for name, value in (values | data).items())
    file.write_text("".join(lines), "utf-8")
    return file


def test_the_settings_for_another_host_have_the_secrets_and_no_address_of_this_one(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, SHARED)

    result = run_vedette("server", "settings", environ={"VEDETTE_CONFIG": str(file)})

    assert result.returncode == 0, result.stderr
    lines = dict(line.split("=", 1) for line in result.stdout.splitlines())
    keys = (tmp_path / "data" / KEY_FILE).read_text().strip()
    secret = (tmp_path / "data" / "secret_key").read_text().strip()
    expected = SHARED | {"VEDETTE_SECRET_KEY": secret, "VEDETTE_ENCRYPTION_KEYS": keys}
    assert lines == expected | {"VEDETTE_DATA_DIR": str(tmp_path / "data")}


def test_another_host_reads_the_settings_as_they_were(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    file = written(first, SHARED)
    printed = run_vedette("server", "settings", environ={"VEDETTE_CONFIG": str(file)}).stdout
    copied = second / "copied"
    # A server that can be set up here.
    copied.write_text(
        printed.replace(SHARED["DATABASE_URL"], f"sqlite:///{second}/vedette.db").replace(
            SHARED["TIMESERIES_URL"], f"duckdb:///{second}/samples.duckdb"
        )
    )
    own = second / "server.env"
    options = ("--file", str(own), "--settings", str(copied), "--data-dir", str(second / "data"))

    made = run_vedette("server", "init", *options, "--public-url", "https://portal.example")

    assert made.returncode == 0, made.stderr
    assert read_variables(own)["VEDETTE_PROXY_SECRET"] == SHARED["VEDETTE_PROXY_SECRET"]
    assert not (second / "data" / KEY_FILE).exists()


def test_a_portal_on_files_of_one_host_has_no_settings_for_others(tmp_path: Path) -> None:
    file = written(tmp_path, {})

    result = run_vedette("server", "settings", environ={"VEDETTE_CONFIG": str(file)})

    assert result.returncode == 1
    assert "database_url (SQLite) and timeseries_url (DuckDB)" in result.stderr


@pytest.mark.parametrize(
    ("holder", "detail", "names"),
    [
        ("elsewhere:12", "elsewhere", ["log_url", "data_url", "secret_key"]),
        ("", "none run this portal", []),
    ],
)
def test_what_hosts_must_share_is_checked_where_there_are_others(
    tmp_path: Path, holder: str, detail: str, names: list[str]
) -> None:
    settings = ServerSettings(data_dir=tmp_path)
    copy_migrated(tmp_path / "vedette.db")
    if holder:
        add_process(settings, holder)

    check = check_hosts(settings)

    assert check.detail == detail
    assert [problem.cause.split()[0] for problem in check.problems] == names


def add_process(settings: ServerSettings, holder: str) -> None:
    engine = create_database_engine(settings.resolved_database_url)
    process = ServerProcess(
        holder=holder,
        url="http://elsewhere:8000",
        parts="portal",
        version="1",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        seen_at=utc_now(),
        requests_per_second=0.0,
        cpu_percent=0.0,
        memory_bytes=1,
    )
    with create_session_factory(engine).begin() as session:
        note_process(session, process)
    engine.dispose()

"""`vedette server init` and `check`: from an empty folder to a server with an operator."""

from pathlib import Path

import pytest

from cli import locked_packages
from core.secretbox import new_key
from core.settings_file import read_variables
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.migrated import copy_migrated
from tests.servers import free_port

URL = "https://portal.example"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def init(tmp_path: Path, port: int) -> "Init":
    return Init(tmp_path, port)


class Init:
    """Runs commands with one file of settings."""

    def __init__(self, folder: Path, port: int) -> None:
        self.file, self.data = folder / "server.env", folder / "data"
        self._port = port

    def __call__(self, *arguments: str, url: str = URL) -> Result:
        fixed = ("--file", str(self.file), "--data-dir", str(self.data), "--public-url", url)
        others = ("--set", f"port={self._port}", *arguments)
        return run_vedette("server", "init", *fixed, *others)

    def command(self, *arguments: str) -> Result:
        return run_vedette(*arguments, environ={"VEDETTE_CONFIG": str(self.file)})


@pytest.mark.usefixtures("real_migrations")
def test_an_operator_can_be_used_with_the_settings_that_were_written(init: Init) -> None:
    made = init("--operator", "olivia@vedette.example")
    assert made.returncode == 0, made.stderr
    assert "Password: " in made.stdout
    assert init.file.stat().st_mode & 0o777 == 0o600
    assert init.command("tenant", "add", "Acme").returncode == 0
    checked = init.command("server", "check")
    assert checked.returncode == 0
    assert "operators: olivia@vedette.example" in checked.stdout


def test_a_second_run_changes_nothing(init: Init) -> None:
    init("--operator", "olivia@vedette.example")
    before = {path: path.read_bytes() for path in (init.file, init.data / "encryption_keys")}
    second = init("--operator", "bob@vedette.example")
    assert second.returncode == 0
    assert f"{init.file} is unchanged." in second.stdout
    assert "Password" not in second.stdout
    assert {path: path.read_bytes() for path in before} == before


def test_all_faults_are_reported_together_and_nothing_is_written(init: Init) -> None:
    faulty = init("--timeseries-url", "ftp://x", url="https://portal.example/vedette")
    assert faulty.returncode == 1
    assert "has a path" in faulty.stdout
    assert "starts with ftp://" in faulty.stdout
    assert not init.file.exists()
    assert not (init.data / "vedette.db").exists()


def test_a_setting_that_does_not_exist_is_refused_before_anything_is_written(init: Init) -> None:
    refused = init("--set", "prot=1")
    assert refused.returncode == 1
    assert "did you mean port" in refused.stderr
    assert not init.file.exists()


def test_a_file_of_settings_counts_like_options(init: Init, tmp_path: Path) -> None:
    others = tmp_path / "others"
    database = f"sqlite:///{tmp_path}/other.db"
    others.write_text(f"database_url={database}\n\nproxy_secret=a b='c'\n", "utf-8")
    assert init("--settings", str(others)).returncode == 0
    written = read_variables(init.file)
    assert written["DATABASE_URL"] == database
    assert written["VEDETTE_PROXY_SECRET"] == "a b='c'"
    assert (tmp_path / "other.db").exists()


def test_an_operator_without_an_address_is_refused_before_anything_is_written(init: Init) -> None:
    refused = init("--operator", "olivia")
    assert refused.returncode == 1
    assert "'olivia' is not an email address" in refused.stderr
    assert not init.file.exists()
    assert not init.data.exists()


def test_check_creates_neither_database_nor_store(init: Init) -> None:
    init.data.mkdir()
    init.file.write_text(f"VEDETTE_DATA_DIR={init.data}\n", "utf-8")
    assert init.command("server", "check").returncode == 0
    assert list(init.data.iterdir()) == []


@pytest.mark.parametrize("has_others", [False, True])
def test_a_server_does_not_start_without_the_keys_of_its_database(
    init: Init, *, has_others: bool
) -> None:
    init("--operator", "olivia@vedette.example")
    assert init.command("ca", "show").returncode == 0
    path = init.data / "encryption_keys"
    path.unlink()
    if has_others:
        path.write_text(new_key(), "utf-8")
    cause = "are not those that encrypted" if has_others else "their keys are missing"
    for command in (("server",), ("tenant", "list"), ("secrets", "rotate"), ("secrets", "new-key")):
        refused = init.command(*command)
        assert (refused.returncode, cause in refused.stderr) == (1, True), refused
    assert path.exists() == has_others


def test_a_server_reports_everything_that_is_wrong_with_it(init: Init) -> None:
    init.data.mkdir()
    copy_migrated(init.data / "vedette.db")
    init.file.write_text(
        f"VEDETTE_DATA_DIR={init.data}\nVEDETTE_PUBLIC_URL=https://x.example/y\n"
        "DATABASE_URL=mysql+pymysql://root@127.0.0.1:1/x\n",
        "utf-8",
    )
    refused = init.command("server")
    assert refused.returncode == 1
    assert "has 2 errors" in refused.stderr
    assert "has a path" in refused.stderr
    assert "can't be used" in refused.stderr


@pytest.mark.parametrize(
    "url",
    ["https://[::1", "https://portal:99999", "https://a b", "https://a;id", "https://u:p@portal"],
)
def test_the_public_url_is_one_that_can_be_pasted_into_a_shell(init: Init, url: str) -> None:
    refused = init(url=url)
    assert refused.returncode == 1
    assert "public_url" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    assert not init.file.exists()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("database", "mysql+pymysql://user:a@secret:1@127.0.0.1/name"),
        ("timeseries", "victoriametrics://user:secret/1@127.0.0.1:1"),
        ("smtp", "smtp://user:secret/1@127.0.0.1:1"),
    ],
)
def test_a_password_that_is_not_encoded_is_refused_without_showing_it(
    init: Init, name: str, url: str
) -> None:
    refused = init(f"--{name}-url", url)
    assert refused.returncode == 1
    assert "percent-encoded" in refused.stdout + refused.stderr
    assert "secret" not in refused.stdout + refused.stderr


def test_the_folder_of_the_data_is_named(init: Init) -> None:
    refused = init("--data-dir", "")
    assert refused.returncode == 1
    assert "is empty" in refused.stderr


def test_a_private_ca_needs_an_address_with_https(init: Init) -> None:
    refused = init("--private-ca", url="http://portal.example")
    assert refused.returncode == 1
    assert "--public-url https://" in refused.stderr
    assert not init.file.exists()


def test_a_private_ca_signs_the_certificate_of_the_public_url(init: Init) -> None:
    made = init("--private-ca", "--operator", "olivia@vedette.example")
    assert made.returncode == 0, made.stderr
    checked = init.command("server", "check")
    assert (
        f"certificate: {init.data / 'server.pem'}, of portal.example, localhost" in checked.stdout
    )
    (init.data / "server.pem").write_text("")
    refused = init.command("server", "check")
    assert refused.returncode == 1
    assert "can't be used" in refused.stdout


def test_other_versions_of_packages_are_reported(
    init: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_packages, "locked_versions", lambda: {"flask": "0.1"})
    made = init("--operator", "olivia@vedette.example")
    assert made.returncode == 0, made.stderr
    assert "is installed, 0.1 was tested" in made.stdout


def test_a_service_needs_systemd_and_the_file_that_it_reads(init: Init) -> None:
    refused = init("--systemd")
    assert refused.returncode == 1
    assert not init.file.exists()


def test_the_unit_of_a_process_runs_it_on_a_port_of_its_own(init: Init) -> None:
    init("--operator", "olivia@vedette.example")
    unit = init.command("server", "unit", "--process", "access", "--port", "443").stdout
    assert f"ReadWritePaths={init.data}\n" in unit
    assert "VEDETTE_PORT=443" in unit
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE" in unit


def test_backups_into_a_folder_can_be_written_by_the_unit_and_are_checked(init: "Init") -> None:
    made = init("--set", "backup_url=/srv/backups", "--set", "backup_password_file=/nowhere")
    assert made.returncode == 0, made.stderr
    assert "backup_password_file /nowhere can't be read" in made.stdout
    unit = init.command("server", "unit").stdout
    assert f"ReadWritePaths={init.data} -/srv/backups\n" in unit


def test_folders_that_all_hosts_mount_can_be_written_by_the_unit(
    init: Init, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    made = init("--set", f"log_url={shared}/logs", "--set", f"data_url=file://{shared}/data")
    assert made.returncode == 0, made.stderr
    unit = init.command("server", "unit", "--process", "portal", "--port", "8000").stdout
    assert f"ReadWritePaths={init.data} -{shared}/logs -{shared}/data\n" in unit

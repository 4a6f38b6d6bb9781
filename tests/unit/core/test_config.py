"""Configuration: every fault at once, with the nearest right spelling."""

from pathlib import Path

import pytest

from core.config import load_config, read_environment, read_toml
from core.errors import ConfigurationError
from core.settings import ServerSettings, load_server_settings, secret_key


def test_the_defaults_suit_the_embedded_server() -> None:
    settings = load_server_settings({})
    assert settings.resolved_database_url == "sqlite:///var/vedette.db"
    assert settings.resolved_timeseries_url == "duckdb:///var/samples.duckdb"
    assert settings.resolved_public_url == "http://127.0.0.1:8000"


def test_all_errors_are_reported_with_the_nearest_key() -> None:
    values = {"prot": 1, "port": 70_000, "stale_after_seconds": "soon", "zzz": 1}
    with pytest.raises(ConfigurationError) as caught:
        load_config(ServerSettings, values, source="vedette.toml")
    text = caught.value.message
    assert len(caught.value.problems) == 4
    assert text.startswith("vedette.toml has 4 errors:")
    assert "prot is not a setting; did you mean port?" in text
    assert "port = 70000" in text
    assert "stale_after_seconds = 'soon'" in text
    assert "zzz is not a setting; known keys: " in text


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text('port = 9000\nhost = "0.0.0.0"\n', encoding="utf-8")
    settings = load_server_settings({"VEDETTE_CONFIG": str(path), "VEDETTE_PORT": "9001"})
    assert (settings.port, settings.host) == (9001, "0.0.0.0")  # noqa: S104 - a test value


def test_platform_variables_need_no_prefix() -> None:
    settings = load_server_settings({"DATABASE_URL": "mysql+pymysql://db/x", "HOME": "/root"})
    assert settings.resolved_database_url == "mysql+pymysql://db/x"


def test_a_typo_in_the_environment_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="did you mean smtp_url"):
        load_server_settings({"VEDETTE_SMPT_URL": "smtp://mail"})


def test_only_prefixed_variables_are_settings() -> None:
    values = read_environment({"VEDETTE_PORT": "1", "PORT": "2"}, prefix="VEDETTE_")
    assert values == {"port": "1"}


def test_a_file_that_is_not_toml_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text("port = 1\nhost = \n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 2"):
        read_toml(path)


def test_a_missing_file_is_reported_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: can.t be read"):
        read_toml(tmp_path / "none.toml")


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path / "var")
    key = secret_key(settings)
    assert secret_key(settings) == key
    assert (tmp_path / "var" / "secret_key").stat().st_mode & 0o777 == 0o600
    assert secret_key(ServerSettings(secret_key="mine")) == "mine"


def test_certificates_are_a_must_only_where_one_can_be_shown() -> None:
    must = {"VEDETTE_REQUIRE_CLIENT_CERTIFICATE": "true"}
    with pytest.raises(ConfigurationError, match="needs tls_certificate_file"):
        load_server_settings(must)
    assert load_server_settings({**must, "VEDETTE_PROXY_SECRET": "x"}).require_client_certificate

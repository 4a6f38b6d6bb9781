"""The file of settings that the server, its commands, systemd and containers read alike."""

import os
from pathlib import Path

import pytest

from core.errors import ConfigurationError
from core.settings import load_server_settings
from core.settings_file import read_variables, write_variables

AWKWARD = [
    "plain",
    "with space",
    "a#b $HOME ${x}",
    "quote'd",
    'double"d',
    "back\\slash'",
    "ü🔥",
    "",
]


@pytest.mark.parametrize("value", AWKWARD)
def test_any_value_is_read_as_it_was_written(tmp_path: Path, value: str) -> None:
    write_variables(tmp_path / "server.env", {"VEDETTE_METRICS_TOKEN": value})
    assert read_variables(tmp_path / "server.env") == {"VEDETTE_METRICS_TOKEN": value}


def test_other_lines_stay_and_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.env"
    path.write_text("# by hand\nVEDETTE_PORT=1\nAWS_REGION=eu-west-1\nVEDETTE_PORT=2\n", "utf-8")
    write_variables(path, {"VEDETTE_PORT": "3", "VEDETTE_HOST": "::"})
    assert path.read_text("utf-8").splitlines() == [
        "# by hand",
        "VEDETTE_PORT=3",
        "AWS_REGION=eu-west-1",
        "VEDETTE_HOST=::",
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_environment_takes_precedence_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.env"
    path.write_text("VEDETTE_PORT=9000\nDATABASE_URL=mysql+pymysql://db/x\n", "utf-8")
    settings = load_server_settings({"VEDETTE_CONFIG": str(path), "VEDETTE_PORT": "9001"})
    assert (settings.port, settings.database_url) == (9001, "mysql+pymysql://db/x")


def test_libraries_see_the_variables_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server.env"
    path.write_text("AWS_REGION=eu-west-1\nAWS_PROFILE=file\n", "utf-8")
    monkeypatch.setenv("VEDETTE_CONFIG", str(path))
    monkeypatch.setenv("AWS_PROFILE", "environment")
    monkeypatch.setenv("AWS_REGION", "")
    monkeypatch.delenv("AWS_REGION")
    load_server_settings()
    assert (os.environ["AWS_REGION"], os.environ["AWS_PROFILE"]) == ("eu-west-1", "environment")


def test_a_file_that_is_named_but_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read"):
        load_server_settings({"VEDETTE_CONFIG": str(tmp_path / "missing.env")})


def test_a_typo_in_the_file_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.env"
    path.write_text("VEDETTE_SMPT_URL=smtp://mail\n", "utf-8")
    with pytest.raises(ConfigurationError, match=r"server\.env .* did you mean smtp_url"):
        load_server_settings({"VEDETTE_CONFIG": str(path)})

"""Settings of relays: wrong ones are clear errors, and each is documented."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from access.app import _PATHS, _PREFIXES, WRITE_PATH
from access.ingest.influx import V2_PRECISIONS
from core.errors import ConfigurationError
from core.settings import load_server_settings
from relay import app
from relay.settings import RelaySettings, load_relay_settings, relay_token, upstream_tls

DOCUMENT = Path(__file__).parents[3] / "docs" / "relays.md"
NO_FILE = {"VEDETTE_RELAY_CONFIG": ""}


def load(**settings: str) -> RelaySettings:
    return load_relay_settings(
        NO_FILE | {f"VEDETTE_RELAY_{name.upper()}": value for name, value in settings.items()}
    )


def test_a_relay_beside_the_portal_needs_no_tls() -> None:
    settings = load(upstream_url="http://127.0.0.1:8000/", token="vdr_x", port="9000")
    assert (settings.upstream, settings.port) == ("http://127.0.0.1:8000", 9000)
    assert relay_token(settings) == "vdr_x"
    assert upstream_tls(settings) is None


def test_settings_come_from_a_file_below_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text('upstream_url = "https://localhost"\ntoken = "vdr_file"\nport = 1\n')
    settings = load_relay_settings(
        {"VEDETTE_RELAY_CONFIG": str(file), "VEDETTE_RELAY_PORT": "2", "VEDETTE_PORT": "3"}
    )
    assert (settings.token, settings.port) == ("vdr_file", 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upstream_url": ""}, "upstream_url = '' is not a web address"),
        ({"upstream_url": "portal.example.com"}, "is not a web address"),
        ({"upstream_url": "https://[::1"}, "upstream_url is not a URL"),
        ({"upstream_url": "https://a:b@localhost"}, "scheme, host and port alone"),
        ({"upstream_url": "https://localhost/portal"}, "scheme, host and port alone"),
        ({"upstream_url": "http://portal.example.com"}, "must begin with https://"),
        ({"upstream_url": "https://portal.example.com"}, "tls_certificate_file is missing"),
        ({"tls_key_file": "relay.key"}, "tls_key_file needs tls_certificate_file"),
        ({"token": ""}, "set token or token_file"),
        ({"token_file": "token"}, "set token or token_file"),
        ({"monitoring_networks": "10.0.0.0/99"}, "monitoring_networks"),
        ({"max_spool_bytes": "5"}, "max_spool_bytes"),
        ({"max_body_bytes": str(2**25)}, "max_body_bytes"),
        ({"max_spool": "5"}, "did you mean max_spool_bytes"),
    ],
)
def test_wrong_settings_are_clear_errors(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load(**{"upstream_url": "https://localhost", "token": "vdr_x", **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b" \n", "is empty"), (b"\xff\xfe", "no token")],
)
def test_a_token_file_without_a_token_is_an_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    settings = load(upstream_url="https://localhost", token_file=str(path))
    with pytest.raises(ConfigurationError, match=message):
        relay_token(settings)
    path.write_text("vdr_of-the-file\n")
    assert relay_token(settings) == "vdr_of-the-file"


def test_an_authority_that_is_none_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    settings = load(upstream_url="https://localhost", token="x", upstream_authority_file=str(path))
    with pytest.raises(ConfigurationError, match="upstream_authority_file"):
        upstream_tls(settings)


def test_every_setting_is_documented_once() -> None:
    section = DOCUMENT.read_text("utf-8").partition("## Settings")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(names) == sorted(field.name for field in fields(RelaySettings))


def test_a_relay_serves_the_paths_of_the_agent_api() -> None:
    assert _PREFIXES[: len(app.PREFIXES)] == app.PREFIXES
    assert app.PATHS | app.HEALTH_PATHS == _PATHS
    assert app.WRITE_PATH == WRITE_PATH
    assert frozenset(V2_PRECISIONS) == app.PRECISIONS


def test_a_server_on_the_same_host_ignores_the_settings_of_a_relay() -> None:
    environ = {"VEDETTE_CONFIG": "", "VEDETTE_RELAY_PORT": "1", "VEDETTE_PORT": "9000"}
    assert load_server_settings(environ).port == 9000

"""What `vedette up` tells whoever started it."""

from pathlib import Path

import pytest

from cli.up import told_settings
from cli.upstart import here
from core.settings import ServerSettings


def test_settings_that_differ_are_told_for_commands_beside_the_server() -> None:
    settings = ServerSettings(data_dir=Path("/srv/my data"), port=9000)
    assert told_settings(settings) == "VEDETTE_DATA_DIR='/srv/my data' VEDETTE_PORT=9000"


def test_nothing_is_told_of_defaults() -> None:
    assert told_settings(ServerSettings()) == ""


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104 - compared, not bound
        ("::", "::1"),
        ("10.0.0.7", "10.0.0.7"),
        ("portal.example", "portal.example"),
    ],
)
def test_a_server_on_every_address_is_reached_on_the_loopback(host: str, reached: str) -> None:
    assert here(host) == reached

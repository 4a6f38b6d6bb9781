"""The output of `vedette up`."""

from pathlib import Path

import pytest

from cli.listen_address import local_address
from cli.up import environment_of
from core.settings import ServerSettings


def test_non_default_settings_are_printed_as_variables() -> None:
    settings = ServerSettings(data_dir=Path("/srv/my data"), port=9000)
    assert environment_of(settings) == "VEDETTE_DATA_DIR='/srv/my data' VEDETTE_PORT=9000"


def test_default_settings_are_not_printed() -> None:
    assert environment_of(ServerSettings()) == ""


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
    assert local_address(host) == reached

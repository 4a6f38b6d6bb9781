"""What `vedette up` tells whoever started it."""

from pathlib import Path

from cli.up import told_settings
from core.settings import ServerSettings


def test_settings_that_differ_are_told_for_commands_beside_the_server() -> None:
    settings = ServerSettings(data_dir=Path("/srv/my data"), port=9000)
    assert told_settings(settings) == "VEDETTE_DATA_DIR='/srv/my data' VEDETTE_PORT=9000"


def test_nothing_is_told_of_defaults() -> None:
    assert told_settings(ServerSettings()) == ""

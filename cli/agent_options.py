"""What the commands of `vedette agent` share: where the data folder is, and its configuration."""

from pathlib import Path

import click

DEFAULT_DATA_DIR = Path("/var/lib/vedette")
CONFIG_NAME = "agent.toml"

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where identity, configuration and undelivered samples are kept.",
)
config_file_argument = click.argument(
    "config_file", type=click.Path(path_type=Path, dir_okay=False), required=False
)

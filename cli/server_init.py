"""`vedette server init`: from an empty host to a portal with an operator who can sign in.

A second run checks the same again, and changes only what its options say.
"""

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import click

from cli.ca import CERTIFICATE_NAME, KEY_NAME, write_server_certificate
from cli.database import prepare_data_dir
from cli.database_setup import prepare_charset, prepare_database
from cli.privileges import acting_as_owner
from cli.server_check import has_fatal, print_checks
from cli.server_checks import all_checks
from cli.server_service import SERVICE_USER, prepare_user, start_service
from cli.systemd import has_systemd
from core.errors import ForbiddenError, InvalidInputError, UnavailableError
from core.settings import UNPREFIXED, ServerSettings, load_server_settings
from core.settings_file import (
    CONFIG_VARIABLE,
    SYSTEM_FILE,
    read_variables,
    settings_file,
    write_variables,
)
from tenants.checks import normalize_email, raise_if_invalid

DATA_DIR = "VEDETTE_DATA_DIR"
# Variables that are asked for where somebody can answer, with the default.
QUESTIONS = {
    "VEDETTE_PUBLIC_URL": ("Address that users and agents open", "https://portal.example.com"),
    DATA_DIR: ("Folder of the server's data", "/var/lib/vedette-server"),
    "DATABASE_URL": ("Database (empty: SQLite in that folder)", ""),
    "TIMESERIES_URL": ("Store of samples (empty: DuckDB in that folder)", ""),
    "VEDETTE_SMTP_URL": ("Mail server, as smtp://user:password@host:587 (empty: none)", ""),
}


@click.command()
@click.option("--file", "path", type=click.Path(path_type=Path), help="File of the settings.")
@click.option("--public-url", help="Address that users and agents open.")
@click.option("--data-dir", help="Folder of the server's data.")
@click.option("--database-url", help="Such as mysql+pymysql://user:password@host/vedette.")
@click.option("--timeseries-url", help="Such as victoriametrics://host:8428.")
@click.option("--smtp-url", help="Such as smtp://user:password@mail.example.com:587.")
@click.option("--mail-from", help="Sender of emails.")
@click.option(
    "--set", "others", multiple=True, metavar="NAME=VALUE", help="Any other setting. Repeatable."
)
@click.option(
    "--settings",
    "file_of_others",
    type=click.File(encoding="utf-8"),
    help="File with a NAME=VALUE on each line, like --set; - is standard input.",
)
@click.option("--operator", metavar="EMAIL", help="Email address of the first operator.")
@click.option(
    "--user",
    "user_name",
    help=f"Owner of a new data folder, if root creates it. Defaults to {SERVICE_USER}, if present.",
)
@click.option(
    "--private-ca",
    "has_private_ca",
    is_flag=True,
    help="Terminate TLS with a certificate that the portal's own CA signs.",
)
@click.option("--systemd", "is_service", is_flag=True, help="Also create its user, and start it.")
def init(
    *,
    path: Path | None,
    others: tuple[str, ...],
    file_of_others: TextIO | None,
    operator: str | None,
    user_name: str | None,
    has_private_ca: bool,
    is_service: bool,
    **options: str | None,
) -> None:
    """Write the settings, check everything, and create database and first operator.

    Asks for what no option, variable or earlier run has set; without a terminal, it takes the
    defaults. Variables of the environment count, and are not written. Options with passwords are
    visible to other users of this host: answer the questions, or use --settings.
    """
    path = path or settings_file(os.environ) or SYSTEM_FILE
    if path.suffix == ".toml":
        raise InvalidInputError(f"{path} is TOML: change it by hand, or name another by --file.")
    if operator is not None:
        raise_if_invalid({"operator": normalize_email(operator)[1]}, "Nothing was set up")
    lines = file_of_others.read().splitlines() if file_of_others else []
    values = _values(path, _given(options, [*others, *filter(str.strip, lines)]))
    settings = _settings_with(path, values)
    if has_private_ca and settings.public_url.startswith("http:"):
        raise InvalidInputError(
            "With --private-ca the server answers by HTTPS alone, but its address is "
            f"{settings.public_url}. Correct it: --public-url https://..."
        )
    if is_service:
        _require_system_file(path)
        prepare_user(user_name or SERVICE_USER)
    prepare_folder(settings, user_name)
    with acting_as_owner(settings.data_dir):
        prepare_charset(settings)
        checks = all_checks(settings)
    print_checks(checks)
    if has_fatal(checks):
        raise UnavailableError("Nothing was set up. Correct the above, and repeat the command.")
    _write(path, values)
    with acting_as_owner(settings.data_dir):
        prepare_database(settings, operator)
    if has_private_ca and settings.tls_certificate_file is None:
        settings = _with_certificate(path, settings)
    if is_service:
        start_service(settings, user=user_name or SERVICE_USER)
        click.echo(f"\nReady: {settings.resolved_public_url}")
    else:
        click.echo(f"\nReady. Start the server: {_start_command(path)}")


def _given(options: dict[str, str | None], others: Sequence[str]) -> dict[str, str]:
    """Return the variables that the options set."""
    values = {_variable(option): value for option, value in options.items() if value is not None}
    for text in others:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidInputError(f"The setting {name!r} has no value. Write it as NAME=VALUE.")
        values[_variable(name)] = value
    broken = [name for name, value in values.items() if "\n" in value]
    if broken:
        raise InvalidInputError(f"{', '.join(broken)} must be one line.")
    return values


def _variable(setting: str) -> str:
    name = setting.upper().removeprefix("VEDETTE_")
    return name if name in UNPREFIXED else f"VEDETTE_{name}"


def _values(path: Path, given: dict[str, str]) -> dict[str, str]:
    """Return the variables to write: those given, and the answers of whoever can be asked."""
    values = given | (_answers(path, given) if sys.stdin.isatty() else {})
    if DATA_DIR in values:
        if not values[DATA_DIR].strip():
            raise InvalidInputError("The folder of the server's data is empty: name it.")
        # The server may start in another folder.
        values[DATA_DIR] = str(Path(values[DATA_DIR]).expanduser().absolute())
    return values


def _answers(path: Path, values: dict[str, str]) -> dict[str, str]:
    """Ask for the settings that nothing else sets; an empty answer is not asked for again."""
    present = {**_variables(path), **os.environ, **values}
    answers = {}
    for name, (question, default) in QUESTIONS.items():
        if name not in present:
            answers[name] = click.prompt(question, default=default, show_default=bool(default))
    return answers


def _settings_with(path: Path, values: dict[str, str]) -> ServerSettings:
    """Return the settings as the server will read them; raises what is wrong with them."""
    os.environ.update({**_variables(path), **os.environ, **values, CONFIG_VARIABLE: ""})
    return load_server_settings()


def _variables(path: Path) -> dict[str, str]:
    return read_variables(path) if path.exists() else {}


def prepare_folder(settings: ServerSettings, user_name: str | None) -> None:
    """Create the data folder for the user that the server runs as."""
    folder = settings.data_dir
    if folder.exists():
        prepare_data_dir(folder)
        return
    account = _account(user_name) if os.geteuid() == 0 else None
    prepare_data_dir(folder)
    click.echo(f"Created the folder {folder}.")
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)


def _account(name: str | None) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name or SERVICE_USER)
    except KeyError:
        if name is None:
            return None
    raise InvalidInputError(f"There is no user {name!r}. Create it: useradd --system {name}")


def _write(path: Path, values: dict[str, str]) -> None:
    """Write what changes in the file of settings, and say so."""
    before = _variables(path)
    changed = {name: value for name, value in values.items() if before.get(name) != value}
    if not changed:
        click.echo(f"{path} is unchanged." if path.exists() else "Settings: the environment.")
        return
    try:
        write_variables(path, changed)
        path.chmod(0o600)
    except OSError as error:
        raise InvalidInputError(
            f"{path} can't be written ({error.strerror}). Run the command as root, or name another "
            "file by --file."
        ) from error
    click.echo(f"Wrote {', '.join(sorted(changed))} to {path}.")


def _with_certificate(path: Path, settings: ServerSettings) -> ServerSettings:
    """Create a certificate for the host of the public URL; return settings that use it."""
    host = urlsplit(settings.resolved_public_url).hostname or settings.host
    with acting_as_owner(settings.data_dir):
        write_server_certificate(settings, [host], folder=settings.data_dir)
    values = {
        "VEDETTE_TLS_CERTIFICATE_FILE": str(settings.data_dir / CERTIFICATE_NAME),
        "VEDETTE_TLS_KEY_FILE": str(settings.data_dir / KEY_NAME),
    }
    _write(path, values)
    return _settings_with(path, values)


def _require_system_file(path: Path) -> None:
    """Refuse what a service of systemd can't be made of."""
    if os.geteuid() != 0:
        raise ForbiddenError("Only root can create a service. Run this command with sudo.")
    if path != SYSTEM_FILE:
        raise InvalidInputError(f"The service reads {SYSTEM_FILE}: leave out --file.")


def _start_command(path: Path) -> str:
    if path == SYSTEM_FILE and has_systemd():
        return "systemctl enable --now vedette-server"
    return "vedette server" if path == SYSTEM_FILE else f"{CONFIG_VARIABLE}={path} vedette server"

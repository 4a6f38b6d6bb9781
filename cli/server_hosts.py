"""Several hosts of one portal: the settings they share, and what must not be on one alone."""

import os
import socket

import click
from sqlalchemy import Engine, make_url, select

from cli.database_checks import Check, on_database
from cli.privileges import acting_as_owner
from core.clock import utc_now
from core.database_checks import Problem
from core.db import create_session_factory
from core.errors import InvalidInputError
from core.revisions import current_revision, head_revision
from core.secretbox import stored_keys
from core.settings import ServerSettings, load_server_settings, secret_key
from core.settings_file import read_variables, settings_file
from tenants.lifecycle.server_processes import SILENT_AFTER
from tenants.models import ServerProcess
from timeseries.store_url import EMBEDDED_SCHEME, parse_store_url

# Of this host alone.
OWN = "VEDETTE_INTERNAL_URL"
# Settings of what all hosts must reach, with what they are about.
PLACES = {"log_url": "logs of ended jobs", "data_url": "uploads and results"}


@click.command()
def settings() -> None:
    """Print the settings for another host of this portal, with its secrets.

    On the other host, `vedette server init --settings FILE` reads them. Store the file where only
    root can read it, and delete it afterwards.
    """
    loaded = load_server_settings()
    embedded = _embedded(loaded)
    if embedded:
        raise InvalidInputError(
            f"{' and '.join(embedded)} can't be shared with other hosts. Set MySQL or MariaDB, and "
            "VictoriaMetrics or InfluxDB: docs/many-hosts.md."
        )
    path = settings_file(os.environ)
    variables = read_variables(path) if path is not None and path.suffix != ".toml" else {}
    with acting_as_owner(loaded.data_dir):
        keys = loaded.encryption_keys or ",".join(stored_keys(loaded.data_dir))
        secrets = {"VEDETTE_SECRET_KEY": secret_key(loaded), "VEDETTE_ENCRYPTION_KEYS": keys}
    for name, value in (variables | secrets).items():
        if name != OWN:
            click.echo(f"{name}={value}")


def _embedded(loaded: ServerSettings) -> list[str]:
    """Return the settings of what one host alone can open."""
    is_file = make_url(loaded.resolved_database_url).get_backend_name() == "sqlite"
    is_embedded = parse_store_url(loaded.resolved_timeseries_url).scheme == EMBEDDED_SCHEME
    named = {"database_url (SQLite)": is_file, "timeseries_url (DuckDB)": is_embedded}
    return [name for name, is_own in named.items() if is_own]


def check_hosts(loaded: ServerSettings) -> Check:
    """Check that what the portal's processes on other hosts need is not on this host alone."""

    def examine(engine: Engine) -> Check:
        if current_revision(engine) != head_revision():
            return Check("other hosts", "not checked: the schema is not the newest")
        since = utc_now() - SILENT_AFTER
        recent = select(ServerProcess.holder).where(ServerProcess.seen_at > since)
        with create_session_factory(engine)() as session:
            holders = session.scalars(recent).all()
        hosts = {holder.rpartition(":")[0] for holder in holders} - {socket.gethostname()}
        if not hosts:
            return Check("other hosts", "none run this portal")
        return Check("other hosts", ", ".join(sorted(hosts)), tuple(_problems(loaded)))

    return on_database(loaded, "other hosts", examine)


def _problems(loaded: ServerSettings) -> list[Problem]:
    problems = [
        Problem(
            f"{name} is not set: {content} are in a folder of this host alone.",
            f"Set VEDETTE_{name.upper()} to s3://BUCKET/PREFIX, or to a folder that hosts share.",
            is_fatal=False,
        )
        for name, content in PLACES.items()
        if not getattr(loaded, name)
    ]
    if not loaded.secret_key:
        problems.append(
            Problem(
                "secret_key is not set: if the other hosts have another key, users are signed out "
                "at each request.",
                "On the first host, run: vedette server settings. docs/many-hosts.md has the steps",
                is_fatal=False,
            )
        )
    return problems

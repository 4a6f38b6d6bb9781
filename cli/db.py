"""`vedette db`: migrations of the server's database, and its usage ledger."""

import sys
from datetime import UTC, datetime

import click

from cli.database import open_database, require_database
from cli.privileges import acting_as_owner
from core.clock import utc_now
from core.db import create_database_engine
from core.migrations import create_revision, schema_differences
from core.revisions import current_revision, head_revision
from core.settings import load_server_settings
from jobqueue.usage.ledger import recompute
from timeseries.open_store import open_store


@click.group()
def db() -> None:
    """Migrate this server's database (DATABASE_URL)."""


@db.command()
def upgrade() -> None:
    """Migrate the database to the newest revision. Creates it if there is none."""
    settings = load_server_settings()
    with (
        acting_as_owner(settings.data_dir),
        open_database(settings, may_create=True) as (engine, _sessions),
    ):
        click.echo(f"The database is at revision {current_revision(engine)}.")


@db.command()
def check() -> None:
    """Compare the database schema with the schema of this version."""
    settings = load_server_settings()
    require_database(settings)
    engine = create_database_engine(settings.resolved_database_url)
    try:
        current, head = current_revision(engine), head_revision()
        differences = schema_differences(engine) if current == head else []
    finally:
        engine.dispose()
    click.echo(f"database: {current}; this version: {head}")
    for difference in differences:
        click.echo(f"  {difference}")
    if current != head:
        click.echo("Run `vedette db upgrade`.")
    sys.exit(1 if differences or current != head else 0)


@db.command()
@click.argument("message")
def revision(message: str) -> None:
    """Generate a migration from the difference between models and database (for developers)."""
    with open_database(load_server_settings(), may_create=True) as (engine, _sessions):
        create_revision(engine, message)
    click.echo("Review the generated script.")


_DAY = click.DateTime(["%Y-%m-%d"])


@db.command("recompute-usage")
@click.option("--since", type=_DAY, default="1970-01-01", help="The first day, in UTC.")
@click.option("--until", type=_DAY, default=None, help="The day after the last one.")
def recompute_usage(since: datetime, until: datetime | None) -> None:
    """Measure the usage ledger again, and append corrections where samples say otherwise.

    With the embedded store, stop the server first.
    """
    settings, now = load_server_settings(), utc_now()
    end_at = now if until is None else until.replace(tzinfo=UTC)
    hours = rows = 0
    with open_database(settings) as (_engine, sessions):
        store = open_store(settings.resolved_timeseries_url)
        try:
            begin_at = since.replace(tzinfo=UTC)
            for hour_at, appended in recompute(
                sessions, store, since=begin_at, until=end_at, now=now
            ):
                hours, rows = hours + 1, rows + appended
                if appended:
                    click.echo(f"{hour_at:%Y-%m-%d %H:%M}  {appended} corrections")
        finally:
            store.close()
    click.echo(f"{hours} hours measured, {rows} corrections appended.")

"""`vedette db`: migrations of the server's database."""

import sys

import click

from cli.database import open_database
from core.db import create_database_engine
from core.migrations import create_revision, schema_differences
from core.revisions import current_revision, head_revision
from core.settings import load_server_settings


@click.group()
def db() -> None:
    """Migrate this server's database (DATABASE_URL)."""


@db.command()
def upgrade() -> None:
    """Migrate the database to the newest revision."""
    with open_database(load_server_settings()) as (engine, _sessions):
        click.echo(f"The database is at revision {current_revision(engine)}.")


@db.command()
def check() -> None:
    """Compare the database schema with the schema of this version."""
    engine = create_database_engine(load_server_settings().resolved_database_url)
    try:
        current, head = current_revision(engine), head_revision()
        differences = schema_differences(engine) if current == head else []
    finally:
        engine.dispose()
    click.echo(f"database: {current or 'empty'}; this version: {head}")
    for difference in differences:
        click.echo(f"  {difference}")
    if current != head:
        click.echo("Run `vedette db upgrade`.")
    sys.exit(1 if differences or current != head else 0)


@db.command()
@click.argument("message")
def revision(message: str) -> None:
    """Generate a migration from the difference between models and database (for developers)."""
    with open_database(load_server_settings()) as (engine, _sessions):
        create_revision(engine, message)
    click.echo("Review the generated script.")

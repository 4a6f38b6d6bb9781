"""`vedette db`: bring this server's database to the newest revision, and check it."""

import sys

import click

from cli.database import TABLE_MODULES, open_database
from core.db import create_database_engine
from core.migrations import (
    create_revision,
    current_revision,
    head_revision,
    schema_differences,
)
from core.settings import load_server_settings


@click.group()
def db() -> None:
    """Migrate this server's database (DATABASE_URL)."""


@db.command()
def upgrade() -> None:
    """Bring the database to the newest revision."""
    with open_database(load_server_settings()) as (engine, _sessions):
        click.echo(f"The database is at revision {current_revision(engine)}.")


@db.command()
def check() -> None:
    """Compare the database with what this version expects."""
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
    """Write a migration with what the models have and the database lacks (for developers)."""
    with open_database(load_server_settings()) as (engine, _sessions):
        create_revision(engine, message)
    click.echo(f"Read the new script: {len(TABLE_MODULES)} modules of tables were compared.")

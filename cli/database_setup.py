"""The database of a new server: character set, tables, keys and the first operator."""

import secrets
import sys

import click
from sqlalchemy import Engine, func, make_url, select
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cli.database import open_database
from core.clock import utc_now
from core.database_checks import CHARSET, set_charset
from core.db import SessionFactory, create_database_engine, transaction
from core.revisions import current_revision, head_revision
from core.secretbox import SecretBox
from core.settings import ServerSettings, secret_key
from tenants.models import Role, User
from tenants.users.members import create_user

_UNKNOWN_DATABASE = 1049


def prepare_charset(settings: ServerSettings) -> None:
    """Create the database, or set the character set of an empty one; the checks report failures."""
    if make_url(settings.resolved_database_url).get_backend_name() == "sqlite":
        return
    try:
        engine = create_database_engine(settings.resolved_database_url)
        try:
            _create_if_missing(engine)
            if set_charset(engine):
                click.echo(f"Set the character set of the empty database to {CHARSET}.")
        finally:
            engine.dispose()
    except (SQLAlchemyError, ModuleNotFoundError):
        return


def prepare_database(settings: ServerSettings, operator: str | None) -> None:
    """Create or upgrade the tables, create keys and the first operator; print what changed."""
    engine = create_database_engine(settings.resolved_database_url)
    before = current_revision(engine)
    engine.dispose()
    with open_database(settings, may_create=True) as (_engine, sessions):
        if before is None:
            click.echo("Created the tables.")
        elif before != head_revision():
            click.echo(f"Upgraded the tables from revision {before}.")
        SecretBox.of(settings)
        secret_key(settings)
        _prepare_operator(sessions, operator)


def _create_if_missing(engine: Engine) -> None:
    try:
        engine.connect().close()
    except OperationalError as error:
        if _UNKNOWN_DATABASE not in getattr(error.orig, "args", ()):
            raise
        without_name = create_database_engine(
            make_url(engine.url).set(database="").render_as_string(hide_password=False)
        )
        name = str(engine.url.database)
        quoted = engine.dialect.identifier_preparer.quote(name)
        with without_name.begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {quoted} CHARACTER SET {CHARSET}")
        without_name.dispose()
        click.echo(f"Created the database {name}.")


def _prepare_operator(sessions: SessionFactory, email: str | None) -> None:
    """Create the first operator, and print the password."""
    with transaction(sessions) as session:
        count = session.scalar(select(func.count()).where(User.is_operator, User.is_active))
    if count:
        click.echo("There is an operator already: none was created.")
        return
    if email is None and sys.stdin.isatty():
        email = click.prompt("Email address of the first operator")
    if email is None:
        click.echo("No operator was created: repeat the command with --operator EMAIL.")
        return
    password = secrets.token_urlsafe(15)
    with transaction(sessions) as session:
        create_user(
            session,
            tenant_id=None,
            email=email,
            name="Operator",
            role=Role.OPERATOR,
            password=password,
            now=utc_now(),
        )
    click.echo(f"\nOperator: {email}\nPassword: {password}")
    click.echo("The password is not shown again. Sign in and change it under Settings.")

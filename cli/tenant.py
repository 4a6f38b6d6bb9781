"""`vedette tenant`: manage tenants and users straight in this server's database.

This is the way to the first operator: it needs access to the database, not a login.
"""

import click

from cli.composition import open_database
from core.clock import utc_now
from core.db import transaction
from core.errors import InvalidInputError
from core.settings import load_server_settings
from tenants.accounts import create_tenant, create_user, find_tenant
from tenants.models import Role


@click.group()
def tenant() -> None:
    """Manage tenants and users in this server's database (DATABASE_URL)."""


@tenant.command()
@click.argument("name")
@click.option("--slug", help="Short name for addresses; made from the name when left out.")
def add(name: str, slug: str | None) -> None:
    """Add a tenant called NAME."""
    with open_database(load_server_settings()) as (_engine, sessions):
        with transaction(sessions) as session:
            made = create_tenant(session, name=name, slug=slug, now=utc_now())
        click.echo(f"{made.slug} {made.id}")


@tenant.command("add-user")
@click.argument("email")
@click.option("--tenant", "slug", help="The tenant's slug; leave out for an operator.")
@click.option("--name", default="", help="Shown in the portal; the address when left out.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True)
@click.password_option(help="At least 10 characters; asked for when left out.")
def add_user(email: str, *, slug: str | None, name: str, role: str, password: str) -> None:
    """Add a user with EMAIL, either to a tenant or as the platform's operator."""
    with open_database(load_server_settings()) as (_engine, sessions):
        with transaction(sessions) as session:
            owner = find_tenant(session, slug) if slug else None
            if slug and owner is None:
                raise InvalidInputError(f"There is no tenant {slug!r}. Add it: vedette tenant add")
            create_user(
                session,
                tenant_id=owner.id if owner else None,
                email=email,
                name=name or email,
                role=Role(role),
                password=password,
                now=utc_now(),
            )
        click.echo(f"{email} may sign in as {role}.")

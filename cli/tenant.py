"""`vedette tenant`: manage tenants and users straight in this server's database.

This is the way to the first operator: it needs access to the database, not a login.
"""

import click

from cli.database import open_database
from cli.tenant_life import COMMANDS
from core.clock import utc_now
from core.db import transaction
from core.errors import InvalidInputError
from core.settings import load_server_settings, secret_key
from tenants.accounts import create_tenant, create_user, find_tenant
from tenants.models import Role
from tenants.people.links import Purpose, make_link
from tenants.people.resets import create_reset


@click.group()
def tenant() -> None:
    """Manage tenants and users in this server's database (DATABASE_URL)."""


for command in COMMANDS:
    tenant.add_command(command)


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


@tenant.command("password-link")
@click.argument("email")
def password_link(email: str) -> None:
    """Print a link that sets a new password for EMAIL, once and within the hour."""
    settings = load_server_settings()
    with open_database(settings) as (_engine, sessions):
        with transaction(sessions) as session:
            made = create_reset(session, email, now=utc_now())
        if made is None:
            raise InvalidInputError(
                f"Nobody who may sign in with a password has the address {email!r}."
            )
    link = make_link(
        Purpose.PASSWORD,
        made[1],
        key=secret_key(settings),
        public_url=settings.resolved_public_url,
    )
    click.echo(link)

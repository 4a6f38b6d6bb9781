"""`vedette tenant`: manage tenants and users directly in this server's database.

This is how the first operator is created: it needs access to the database, not a login.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
from sqlalchemy.orm import Session

from cli.database import OPERATOR, open_session
from core.clock import utc_now
from core.errors import InvalidInputError, NotFoundError
from core.paging import Page
from core.settings import load_server_settings, secret_key
from tenants.lifecycle.removal import list_removals, request_removal, set_tenant_state
from tenants.lifecycle.usage import tenant_counts
from tenants.models import Role, Tenant, TenantState
from tenants.quotas import MAX_BYTES, MAX_COUNT, Limits, limits_of, set_limits
from tenants.tenants import create_tenant, find_tenant
from tenants.tenants import list_tenants as tenants_page
from tenants.users.members import create_user
from tenants.users.resets import Purpose, create_reset, make_link

_PAGE_SIZE = 500
_COUNT, _BYTES = click.IntRange(0, MAX_COUNT), click.IntRange(0, MAX_BYTES)


@click.group()
def tenant() -> None:
    """Manage tenants and users in this server's database (DATABASE_URL)."""


@tenant.command("list")
@click.option("--removed", is_flag=True, help="List removed tenants and removals in progress.")
def list_tenants(*, removed: bool) -> None:
    """List tenants with their number of users, appliances and jobs."""
    with open_session() as session:
        for line in _removals(session) if removed else _tenants(session):
            click.echo(line)


@tenant.command()
@click.argument("name")
@click.option("--slug", help="Short name for URLs and commands. Defaults to one made from NAME.")
def add(name: str, slug: str | None) -> None:
    """Add the tenant NAME."""
    with open_session() as session:
        made = create_tenant(session, name=name, slug=slug, now=utc_now())
        line = f"{made.slug} {made.id}"
    click.echo(line)


@tenant.command("add-user")
@click.argument("email")
@click.option("--tenant", "slug", help="Slug of the tenant. Omit for an operator.")
@click.option("--name", default="", help="Display name. Defaults to EMAIL.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True)
@click.password_option(help="At least 10 characters. Prompts if omitted.")
def add_user(email: str, *, slug: str | None, name: str, role: str, password: str) -> None:
    """Add the user EMAIL to a tenant, or as an operator of the portal."""
    with open_session() as session:
        owner = find_tenant(session, slug) if slug else None
        if slug and owner is None:
            raise InvalidInputError(f"No tenant {slug!r}. Add it with: vedette tenant add")
        create_user(
            session,
            tenant_id=owner.id if owner else None,
            email=email,
            name=name or email,
            role=Role(role),
            password=password,
            now=utc_now(),
        )
    click.echo(f"Added {email} as {role}.")


@tenant.command("password-link")
@click.argument("email")
def password_link(email: str) -> None:
    """Print a one-time link that sets a new password for EMAIL. It expires in one hour."""
    settings = load_server_settings()
    with open_session(settings) as session:
        made = create_reset(session, email, now=utc_now())
    if made is None:
        raise InvalidInputError(f"No active user with a password has the address {email!r}.")
    url = settings.resolved_public_url
    click.echo(make_link(Purpose.PASSWORD, made[1], key=secret_key(settings), public_url=url))


@tenant.command()
@click.argument("slug")
def suspend(slug: str) -> None:
    """Block the users and appliances of tenant SLUG."""
    _set_state(slug, TenantState.SUSPENDED)


@tenant.command()
@click.argument("slug")
def activate(slug: str) -> None:
    """Unblock the users and appliances of tenant SLUG."""
    _set_state(slug, TenantState.ACTIVE)


@tenant.command()
@click.argument("slug")
@click.confirmation_option(prompt="Close this tenant permanently? This can't be undone.")
def close(slug: str) -> None:
    """Close tenant SLUG permanently. Its data stays until it is removed."""
    _set_state(slug, TenantState.CLOSED)


@tenant.command()
@click.argument("slug")
@click.option("--name", prompt="Type the tenant's name", help="Name of the tenant, to confirm.")
def remove(slug: str, name: str) -> None:
    """Export the closed tenant SLUG, then delete all of its data, samples included.

    The running server does the work; `vedette tenant list --removed` shows its progress.
    """
    with open_session() as session:
        tenant = _find(session, slug)
        removal = request_removal(
            session, OPERATOR, tenant.id, name=name, by="command line", now=utc_now()
        )
    settings = load_server_settings()
    folder = (
        f"{settings.data_url.rstrip('/')}/exports" if settings.data_url else settings.exports_dir
    )
    click.echo(
        f"Removal requested. The server exports the tenant to {folder}/{removal.file_name}, then "
        "deletes it."
    )


@tenant.command()
@click.argument("slug")
@click.option("--appliances", type=_COUNT, help="Maximum number of appliances.")
@click.option("--gpus", type=_COUNT, help="Maximum number of GPUs.")
@click.option("--jobs", type=_COUNT, help="Maximum number of concurrent jobs.")
@click.option("--series", type=_COUNT, help="Maximum number of active series.")
@click.option("--measurements", type=_COUNT, help="Maximum number of active measurements.")
@click.option("--fields", type=_COUNT, help="Maximum number of active fields.")
@click.option("--storage-bytes", type=_BYTES, help="Maximum storage for samples.")
@click.option("--waiting-jobs", type=_COUNT, help="Maximum number of jobs that wait.")
@click.option("--rules", type=_COUNT, help="Maximum number of rules.")
@click.option("--receivers", type=_COUNT, help="Maximum number of receivers.")
@click.option("--schedules", type=_COUNT, help="Maximum number of schedules.")
@click.option("--dashboards", type=_COUNT, help="Maximum number of custom dashboards.")
@click.option("--data-bytes", type=_BYTES, help="Maximum size of uploads and results.")
@click.option("--unlimited", is_flag=True, help="Remove all quotas.")
def quota(*, slug: str, unlimited: bool, **options: int | None) -> None:
    """Show the quotas of tenant SLUG. Options replace all of them."""
    with open_session() as session:
        tenant = _find(session, slug)
        if unlimited or any(value is not None for value in options.values()):
            limits = Limits(
                max_appliances=options["appliances"],
                max_gpus=options["gpus"],
                max_active_jobs=options["jobs"],
                max_series=options["series"],
                max_measurements=options["measurements"],
                max_fields=options["fields"],
                max_storage_bytes=options["storage_bytes"],
                max_waiting_jobs=options["waiting_jobs"],
                max_rules=options["rules"],
                max_receivers=options["receivers"],
                max_schedules=options["schedules"],
                max_dashboards=options["dashboards"],
                max_data_bytes=options["data_bytes"],
            )
            set_limits(session, OPERATOR, tenant.id, limits)
        limits = limits_of(session, tenant.id)
    for name in Limits.__dataclass_fields__:
        value = limits.limit(name.removeprefix("max_"))
        is_default = value is not None and getattr(limits, name) is None
        note = " (default)" if is_default else ""
        click.echo(f"{name:<20} {'unlimited' if value is None else value}{note}")


def _set_state(slug: str, state: TenantState) -> None:
    with open_session() as session:
        tenant = _find(session, slug)
        set_tenant_state(session, OPERATOR, tenant.id, state, now=utc_now())
    click.echo(f"{slug} is {state.value}.")


def _tenants(session: Session) -> Iterator[str]:
    counts = tenant_counts(session)
    for listed in _all_pages(partial(tenants_page, session, OPERATOR)):
        count = counts[listed.id]
        yield (
            f"{listed.slug:<24} {listed.state.value:<10} {count.users:>5} users "
            f"{count.appliances:>6} appliances {count.jobs:>7} jobs  {listed.name}"
        )


def _removals(session: Session) -> Iterator[str]:
    for removal in _all_pages(partial(list_removals, session, OPERATOR)):
        steps = f"{removal.done}/{removal.total}" if removal.total else ""
        outcome = removal.error or removal.file_name
        yield f"{removal.tenant_slug:<24} {removal.state.value:<17} {steps:>7}  {outcome}"


def _all_pages(page_of: Callable[..., Page[Any]]) -> Iterator[Any]:
    number = 1
    while items := page_of(page=number, page_size=_PAGE_SIZE).items:
        yield from items
        number += 1


def _find(session: Session, slug: str) -> Tenant:
    tenant = find_tenant(session, slug)
    if tenant is None:
        raise NotFoundError(f"There is no tenant {slug!r}. See: vedette tenant list")
    return tenant

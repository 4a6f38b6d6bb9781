"""`vedette tenant list|suspend|activate|close|remove|quota`: what an operator does with tenants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from sqlalchemy.orm import Session

from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.errors import NotFoundError
from core.paging import Page
from core.settings import load_server_settings
from tenants.accounts import find_tenant, set_tenant_state, tenant_counts
from tenants.accounts import list_tenants as tenants_page
from tenants.customers.quotas import MAX_BYTES, MAX_COUNT, Limits, limits_of, set_limits
from tenants.customers.removal import list_removals, request_removal
from tenants.models import Role, Tenant, TenantState
from tenants.scope import Scope

_PAGE_SIZE = 500
# The command line needs the database, and with it has all that an operator may.
_OPERATOR = Scope(user_id="", role=Role.OPERATOR, tenant_id=None)


@click.command("list")
@click.option("--removed", is_flag=True, help="Those that are being removed, and that were.")
def list_tenants(*, removed: bool) -> None:
    """List the tenants with their users, appliances and jobs."""
    with _session() as session:
        lines = _removals(session) if removed else _tenants(session)
        for line in lines:
            click.echo(line)


@click.command()
@click.argument("slug")
def suspend(slug: str) -> None:
    """Keep the users and appliances of the tenant SLUG out until it is activated."""
    _set_state(slug, TenantState.SUSPENDED)


@click.command()
@click.argument("slug")
def activate(slug: str) -> None:
    """Let the users and appliances of the suspended tenant SLUG in again."""
    _set_state(slug, TenantState.ACTIVE)


@click.command()
@click.argument("slug")
@click.confirmation_option(prompt="Close it for good? It can't be opened again.")
def close(slug: str) -> None:
    """Close the tenant SLUG for good; what it has stays until it is removed."""
    _set_state(slug, TenantState.CLOSED)


@click.command()
@click.argument("slug")
@click.option("--name", prompt="Type the tenant's name", help="The tenant's name, to be sure.")
def remove(slug: str, name: str) -> None:
    """Have the closed tenant SLUG exported, then deleted with everything, samples included.

    The running server's scheduler does it; `vedette tenant list --removed` says how far it is.
    """
    settings = load_server_settings()
    with _session() as session:
        tenant = _find(session, slug)
        removal = request_removal(
            session, _OPERATOR, tenant.id, name=name, by="command line", now=utc_now()
        )
        path = settings.exports_dir / removal.file_name
    click.echo(f"The server exports it to {path}, then deletes it.")


@click.command()
@click.argument("slug")
@click.option("--appliances", type=click.IntRange(0, MAX_COUNT), help="The most appliances.")
@click.option("--gpus", type=click.IntRange(0, MAX_COUNT), help="The most GPUs.")
@click.option("--jobs", type=click.IntRange(0, MAX_COUNT), help="The most jobs at a time.")
@click.option("--series", type=click.IntRange(0, MAX_COUNT), help="The most active series.")
@click.option("--storage-bytes", type=click.IntRange(0, MAX_BYTES), help="The most for samples.")
@click.option("--unlimited", is_flag=True, help="Take every quota away.")
def quota(*, slug: str, unlimited: bool, **options: int | None) -> None:
    """Show the quotas of the tenant SLUG; with options, set all of them anew."""
    with _session() as session:
        tenant = _find(session, slug)
        if unlimited or any(value is not None for value in options.values()):
            set_limits(session, _OPERATOR, tenant.id, _limits(options))
        found = limits_of(session, tenant.id)
        for name in Limits.__dataclass_fields__:
            value = getattr(found, name)
            click.echo(f"{name:<20} {'unlimited' if value is None else value}")


COMMANDS = (list_tenants, suspend, activate, close, remove, quota)


def _limits(options: dict[str, int | None]) -> Limits:
    return Limits(
        max_appliances=options["appliances"],
        max_gpus=options["gpus"],
        max_active_jobs=options["jobs"],
        max_series=options["series"],
        max_storage_bytes=options["storage_bytes"],
    )


def _set_state(slug: str, state: TenantState) -> None:
    with _session() as session:
        tenant = _find(session, slug)
        set_tenant_state(session, _OPERATOR, tenant.id, state, now=utc_now())
    click.echo(f"{slug} is {state.value}.")


def _tenants(session: Session) -> Iterator[str]:
    counts = tenant_counts(session)
    for tenant in _every(partial(tenants_page, session, _OPERATOR)):
        count = counts[tenant.id]
        yield (
            f"{tenant.slug:<24} {tenant.state.value:<10} {count.users:>5} users "
            f"{count.appliances:>6} appliances {count.jobs:>7} jobs  {tenant.name}"
        )


def _removals(session: Session) -> Iterator[str]:
    for one in _every(partial(list_removals, session, _OPERATOR)):
        steps = f"{one.done}/{one.total}" if one.total else ""
        rest = one.error or one.file_name
        yield f"{one.tenant_slug:<24} {one.state.value:<17} {steps:>7}  {rest}"


def _every(page_of: Callable[..., Page[Any]]) -> Iterator[Any]:
    number = 1
    while items := page_of(page=number, page_size=_PAGE_SIZE).items:
        yield from items
        number += 1


def _find(session: Session, slug: str) -> Tenant:
    tenant = find_tenant(session, slug)
    if tenant is None:
        raise NotFoundError(f"There is no tenant {slug!r}. `vedette tenant list` names them.")
    return tenant


@contextmanager
def _session() -> Iterator[Session]:
    with (
        open_database(load_server_settings()) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        yield session

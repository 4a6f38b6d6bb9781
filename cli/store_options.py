"""What the commands of `vedette store` share: spans, tenants, opening a store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import click

from cli.database import open_database
from core.clock import to_ns, utc_now
from core.errors import InvalidInputError
from core.settings import load_server_settings
from tenants.accounts import find_tenant
from tenants.models import Tenant
from timeseries.open_store import open_store
from timeseries.store import TENANT_TAG, Store, StoreUnavailableError
from timeseries.store_url import parse_store_url

# Before any sample, and still an instant that every store can compare with.
BEGINNING_NS = -(2**63)


class Instant(click.ParamType[datetime]):
    """A day or an instant in ISO 8601; UTC where it does not say."""

    name = "date"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime:
        """Return the aware instant."""
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a date like 2026-03-01 or 2026-03-01T12:00Z", param, ctx)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def span_ns(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Return the span as nanoseconds; without bounds it reaches from the first sample to the last.

    Raises:
        InvalidInputError: it ends before it begins.
    """
    if since and until and since >= until:
        raise InvalidInputError(
            f"--since {since:%Y-%m-%d %H:%M} is not before --until {until:%Y-%m-%d %H:%M}."
        )
    start_ns = to_ns(since) if since else BEGINNING_NS
    return start_ns, to_ns(until or utc_now() + timedelta(days=1))


@contextmanager
def open_existing(url: str, *, option: str) -> Iterator[Store]:
    """Open a store that must be there already, and close it at the end.

    Raises:
        StoreUnavailableError: it is not there, or another process has it.
    """
    try:
        opened = open_store(url, must_exist=True, source=option)
    except StoreUnavailableError as error:
        raise with_advice(error) from error
    try:
        yield opened
    finally:
        opened.close()


def with_advice(error: StoreUnavailableError) -> StoreUnavailableError:
    """Return the error with what to do where a running server has the file open."""
    if "is in use by" not in error.message:
        return error
    return StoreUnavailableError(
        f"{error.message}\nIf it is the running server: stop it while this command runs, or export "
        "through it with GET /api/v1/samples/export. To move to another store, start the server "
        "on the new one first, and move the old file's samples then."
    )


def tenant_ids(given: Sequence[str], *, stores: Sequence[Store]) -> tuple[str, ...] | None:
    """Return the ids of tenants named by slug or id; None for nobody named, which is all of them.

    A tenant that is no longer in the database may still have samples: its id is taken too.

    Raises:
        InvalidInputError: neither the database nor a store knows one.
    """
    if not given:
        return None
    with open_database(load_server_settings()) as (_engine, sessions), sessions() as session:
        known = {}
        for name in given:
            tenant = find_tenant(session, name) or session.get(Tenant, name)
            if tenant is not None:
                known[name] = tenant.id
    sampled = _tenants_of(stores) if len(known) < len(set(given)) else set()
    for name in given:
        if name not in known and name not in sampled:
            raise InvalidInputError(
                f"There is no tenant {name!r}: this server's database has no such slug or id, and "
                "no sample in the store belongs to it."
            )
    return tuple(sorted({known.get(name, name) for name in given}))


def _tenants_of(stores: Sequence[Store]) -> set[str]:
    return {
        tenant
        for one in stores
        for measurement in one.measurements(tenants=None)
        for tenant in one.tag_values(measurement, TENANT_TAG, tenants=None)
    }


def shown(url: str) -> str:
    """Return a URL without its secrets."""
    return parse_store_url(url).redacted

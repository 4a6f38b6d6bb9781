"""Shared by the commands of `vedette store`: options, opening a store, progress and interrupts."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import FrameType

import click

from cli.database import open_session
from core.clock import to_ns, utc_now
from core.errors import InvalidInputError, NotFoundError
from core.quantities import format_duration
from tenants.models import Tenant
from tenants.tenants import find_tenant
from timeseries.open_store import open_store
from timeseries.store import TENANT_TAG, Store, StoreUnavailableError, check_store

# Before all samples, and an instant that every store can compare with.
BEGINNING_NS = -(2**63)
_FIRST_LINE_SECONDS = 2.0
_LINE_SECONDS = 10.0
_REDRAW_SECONDS = 0.5


class Instant(click.ParamType[datetime]):
    """A date or an instant in ISO 8601, in UTC unless it has an offset."""

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
            instant = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a date like 2026-03-01 or 2026-03-01T12:00Z", param, ctx)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)


since_option = click.option("--since", type=Instant(), help="Start date or instant (UTC).")
until_option = click.option("--until", type=Instant(), help="End date or instant (UTC), exclusive.")
tenant_option = click.option(
    "--tenant", "tenants", multiple=True, help="Only this tenant (slug or ID); repeatable."
)


def span_ns(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Return the span in nanoseconds. Without bounds it includes all samples.

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
def opened(url: str, *, option: str, must_exist: bool = True) -> Iterator[Store]:
    """Open a store, and close it at the end.

    Raises:
        StoreUnavailableError: it does not exist or answer, or another process has it open.
    """
    try:
        store = open_store(url, must_exist=must_exist, source=option)
    except StoreUnavailableError as error:
        if "is in use by" not in error.message:
            raise
        raise StoreUnavailableError(
            f"{error.message} If it is the running server, stop it while this command runs, or "
            "export through it with GET /api/v1/samples/export. To change stores, start the "
            "server with the new one first, then migrate the samples of the old file."
        ) from error
    try:
        check_store(store)
        yield store
    finally:
        store.close()


def tenant_ids(names: Sequence[str], *, store: Store) -> tuple[str, ...] | None:
    """Return the IDs of tenants given by slug or ID; None if none is given, which means all.

    An ID that is not in the database is accepted if the store has samples of it.

    Raises:
        InvalidInputError: a tenant is unknown to the database and the store.
    """
    if not names:
        return None
    ids: set[str] = set()
    unknown = set(names)
    with suppress(NotFoundError), open_session() as session:  # a host without a server has none
        tenants = {name: find_tenant(session, name) or session.get(Tenant, name) for name in names}
        ids = {tenant.id for tenant in tenants.values() if tenant is not None}
        unknown = {name for name, tenant in tenants.items() if tenant is None}
    for name in sorted(unknown - _tenants_of(store) if unknown else ()):
        raise InvalidInputError(
            f"There is no tenant {name!r}: no slug or ID in this server's database, and no "
            "sample in the store."
        )
    return tuple(sorted(ids | unknown))


def check_measurements(
    store: Store, names: Sequence[str], *, tenants: tuple[str, ...] | None = None
) -> None:
    """Check that the store has all the measurements.

    Raises:
        InvalidInputError: it does not.
    """
    if missing := set(names).difference(store.measurements(tenants=tenants)):
        suffix = " for these tenants" if tenants is not None else ""
        raise InvalidInputError(
            f"The store has no measurement {', '.join(sorted(missing))}{suffix}; nothing was "
            "written. To list measurements, run: vedette store stats"
        )


class ProgressLine:
    """Progress on stderr: nothing in the first two seconds, then a line at intervals.

    On a terminal, the line is redrawn in place.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first: int | None = None
        self._due = self._started + _FIRST_LINE_SECONDS
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False

    def update(self, subject: str, done: int, total: int) -> None:
        """Show the subject, and how many of about `total` points are done."""
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now < self._due:
            return
        rate = (done - self._first) / (now - self._started)
        remaining = format_duration((total - done) / rate) if rate else "?"
        percent = min(100, 100 * done // total) if total else 0
        text = f"{subject}: {done:,} points, {percent} %, {rate:,.0f}/s, {remaining} left"
        click.echo(
            f"\r\033[K{text}" if self._is_terminal else text, err=True, nl=not self._is_terminal
        )
        self._is_drawn = self._is_terminal
        self._due = now + (_REDRAW_SECONDS if self._is_terminal else _LINE_SECONDS)

    def close(self) -> None:
        """End the line."""
        if self._is_drawn:
            click.echo(err=True)
            self._is_drawn = False


class Interrupt:
    """Records whether Ctrl-C or SIGTERM was received, and which."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal_number = 0

    def is_set(self) -> bool:
        """Return whether a signal was received."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until a signal or the timeout."""
        return self._event.wait(seconds)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal; the second one ends the process."""
        if self.is_set():
            raise KeyboardInterrupt
        self.signal_number = number
        self._event.set()


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Record Ctrl-C and SIGTERM while the block runs, instead of ending the process."""
    interrupt = Interrupt()
    before = {
        number: signal.signal(number, interrupt.handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tenants_of(store: Store) -> set[str]:
    return {
        tenant
        for measurement in store.measurements(tenants=None)
        for tenant in store.tag_values(measurement, TENANT_TAG, tenants=None)
    }

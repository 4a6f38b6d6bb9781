"""`vedette store migrate`: move history from one store to another."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click

from cli.database import prepare_data_dir
from cli.store_options import (
    Instant,
    open_existing,
    shown,
    span_ns,
    tenant_ids,
    with_advice,
)
from cli.store_progress import ProgressLine, StopRequest, stop_on_signals
from core.clock import from_ns
from core.errors import InvalidInputError, VedetteError
from core.settings import load_server_settings
from timeseries.moving.check import differences, left_out
from timeseries.moving.delivery import Outcome
from timeseries.moving.migration import Migration, Progress, Selection
from timeseries.moving.state import StateFile, state_key, state_path
from timeseries.open_store import open_store
from timeseries.store import ScanQuery, Store, StoreUnavailableError
from timeseries.store_url import parse_store_url

FOLDER = "migrations"
_SPELT_OUT = 20


class MigrationFaultError(VedetteError):
    """The migration ran through, and the destination does not hold everything."""

    default_code = "migration_incomplete"


@click.command()
@click.option("--from", "source_url", envvar="STORE_FROM", required=True, help="URL to read.")
@click.option("--to", "destination_url", envvar="STORE_TO", required=True, help="URL to fill.")
@click.option("--since", type=Instant(), help="First day or instant to move (UTC).")
@click.option("--until", type=Instant(), help="Day or instant to stop before (UTC).")
@click.option("--tenant", "tenants", multiple=True, help="Only this tenant (slug or id); repeat.")
@click.option("--measurement", "measurements", multiple=True, help="Only this one; repeat.")
@click.option("--verify", is_flag=True, help="Count both stores at the end.")
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of progress; in the data folder when left out.",
)
def migrate(
    *,
    source_url: str,
    destination_url: str,
    since: datetime | None,
    until: datetime | None,
    tenants: tuple[str, ...],
    measurements: tuple[str, ...],
    verify: bool,
    state_file: Path | None,
) -> None:
    """Move samples from one store to another.

    The source is only read. Stop it at any time (Ctrl-C); the same command goes on where it
    stopped. Points that the destination has already are not written twice. URLs with passwords
    are better given in the variables STORE_FROM and STORE_TO, which other users can't list.
    """
    _check_places(source_url, destination_url)
    start_ns, end_ns = span_ns(since, until)
    options: dict[str, object] = {
        "since": since.isoformat() if since else None,
        "until": until.isoformat() if until else None,
        "tenants": sorted(tenants),
        "measurements": sorted(measurements),
    }
    state = _state(source_url, destination_url, options, state_file)
    with _opened(source_url, destination_url) as (source, destination):
        selection = Selection(
            measurements=measurements,
            tenants=tenant_ids(tenants, stores=[source]),
            start_ns=start_ns,
            end_ns=end_ns,
        )
        _check_names(source, selection)
        with stop_on_signals() as stop:
            outcome = _move(source, destination, selection, state=state, stop=stop)
            if outcome.is_complete and verify:
                _verify(source, destination, selection, stop=stop)
    if stop.is_made():
        click.echo("Stopped. The same command goes on where it stopped.", err=True)
        sys.exit(128 + stop.signal_number)
    state.forget()
    _report(outcome, shown(destination_url))


def _check_places(source_url: str, destination_url: str) -> None:
    source = parse_store_url(source_url, source="--from")
    destination = parse_store_url(destination_url, source="--to")
    for option, url in (("--from", source), ("--to", destination)):
        if url.is_in_memory:
            raise InvalidInputError(f"{option} is a store in memory: it ends with this command.")
    if source.place == destination.place:
        raise InvalidInputError(
            f"--from and --to are the same store, {source.redacted}. Name another with --to."
        )


def _check_names(source: Store, selection: Selection) -> None:
    missing = set(selection.measurements).difference(source.measurements(tenants=None))
    if missing:
        raise InvalidInputError(
            f"The source has no measurement {', '.join(sorted(missing))}. "
            "`vedette store stats --url URL` lists those it has."
        )


def _state(
    source_url: str, destination_url: str, options: dict[str, object], path: Path | None
) -> StateFile:
    key = state_key(
        source=parse_store_url(source_url).place,
        destination=parse_store_url(destination_url).place,
        options=options,
    )
    if path is None:
        data_dir = load_server_settings().data_dir
        prepare_data_dir(data_dir)
        path = state_path(data_dir / FOLDER, key)
    return StateFile(path, key=key)


@contextmanager
def _opened(source_url: str, destination_url: str) -> Iterator[tuple[Store, Store]]:
    with open_existing(source_url, option="--from") as source:
        try:
            destination = open_store(destination_url, source="--to")
        except StoreUnavailableError as error:
            raise with_advice(error) from error
        try:
            yield source, destination
        finally:
            destination.close()


def _move(
    source: Store,
    destination: Store,
    selection: Selection,
    *,
    state: StateFile,
    stop: StopRequest,
) -> Outcome:
    line = ProgressLine()
    if state.path.exists():
        click.echo(f"Going on from {state.path}", err=True)

    def show(progress: Progress) -> None:
        line.update(_chunk_text(progress.chunk), progress.points, progress.total_points)

    moving = Migration(source, destination, selection, state=state, pause=stop.wait)
    try:
        return moving.run(should_stop=stop.is_made, on_progress=show)
    except StoreUnavailableError as error:
        message = f"{error.message} The same command goes on where this one stopped."
        raise StoreUnavailableError(message) from error
    finally:
        line.close()


def _verify(source: Store, destination: Store, selection: Selection, *, stop: StopRequest) -> None:
    found = []
    checked, due = 0, time.monotonic() + 2

    def show(chunk: ScanQuery) -> None:
        nonlocal checked, due
        checked += 1
        if time.monotonic() >= due:
            due = time.monotonic() + 2
            click.echo(f"counted {checked:,} chunks, now {_chunk_text(chunk)}", err=True)

    compared = differences(source, destination, selection, on_chunk=show, pause=stop.wait)
    for difference in compared:
        found.append(difference)
        if stop.is_made():
            return
    if found:
        lines = [
            f"  {_chunk_text(one.chunk)} {one.field}: {one.source_count:,} in the source, "
            f"{one.destination_count:,} in the destination"
            for one in found[:_SPELT_OUT]
        ]
        more = [f"  and {len(found) - len(lines)} more"] if len(found) > len(lines) else []
        raise MigrationFaultError(
            "\n".join(["The stores do not hold the same number of values:", *lines, *more])
        )
    omitted = left_out(source, destination, selection)
    if omitted:
        click.echo(f"Not kept by the destination, which holds no text: {', '.join(omitted)}")
    click.echo(f"Verified: both stores hold the same number of values in {checked:,} chunks.")


def _report(outcome: Outcome, destination: str) -> None:
    moved = outcome.points - outcome.refused
    there = f" ({outcome.present:,} were there already)" if outcome.present else ""
    click.echo(f"{moved:,} points are in {destination}{there}.")
    if outcome.refused:
        reasons = "\n".join(f"  {n:,} x {why}" for why, n in outcome.reasons.most_common())
        raise MigrationFaultError(
            f"The destination refused {outcome.refused:,} of {outcome.points:,} points:\n{reasons}"
        )


def _chunk_text(chunk: ScanQuery) -> str:
    return f"{chunk.measurement} {from_ns(chunk.start_ns):%Y-%m-%d %H:%M}"

"""`vedette store migrate`: copy samples from one store to another."""

import sys
import time
from datetime import datetime
from pathlib import Path

import click

from cli.database import prepare_data_dir
from cli.store_common import (
    Interrupt,
    ProgressLine,
    check_measurements,
    interruptible,
    opened,
    since_option,
    span_ns,
    tenant_ids,
    tenant_option,
    until_option,
)
from core.clock import from_ns
from core.errors import InvalidInputError, VedetteError
from core.settings import load_server_settings
from timeseries.migration.compare import Selection, differences, omitted_fields
from timeseries.migration.migration import Migration, MigrationResult, Progress
from timeseries.migration.state import StateFile, state_key, state_path
from timeseries.store import ScanQuery, Store, StoreUnavailableError
from timeseries.store_url import StoreURL, parse_store_url

FOLDER = "migrations"
RESUME = "Run the same command again to resume."
_MAX_LISTED = 20
_REPORT_SECONDS = 2


class MigrationFaultError(VedetteError):
    """The migration ended, and the destination does not have all samples."""

    default_code = "migration_incomplete"


@click.command()
@click.option("--from", "source_url", envvar="STORE_FROM", required=True, help="Source URL.")
@click.option("--to", "destination_url", envvar="STORE_TO", required=True, help="Destination URL.")
@since_option
@until_option
@tenant_option
@click.option("--measurement", "measurements", multiple=True, help="Only this one; repeatable.")
@click.option("--verify", is_flag=True, help="Compare the number of values at the end.")
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the progress. Defaults to one in the data directory.",
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
    """Copy samples from one store to another.

    The source is only read. You can stop at any time with Ctrl-C; the same command resumes.
    Points that the destination already has are not written again. Set URLs with passwords through
    the variables STORE_FROM and STORE_TO, which keeps them out of the process list.
    """
    source_place, destination_place = _parse_urls(source_url, destination_url)
    start_ns, end_ns = span_ns(since, until)
    key = state_key(
        source=source_place.canonical,
        destination=destination_place.canonical,
        options={
            "since": since.isoformat() if since else None,
            "until": until.isoformat() if until else None,
            "tenants": sorted(tenants),
            "measurements": sorted(measurements),
        },
    )
    if state_file is None:
        data_dir = load_server_settings().data_dir
        prepare_data_dir(data_dir)
        state_file = state_path(data_dir / FOLDER, key)
    state = StateFile(state_file, key=key)
    with (
        opened(source_url, option="--from") as source,
        opened(destination_url, option="--to", must_exist=False) as destination,
        interruptible() as interrupt,
    ):
        selection = Selection(
            measurements=measurements,
            tenants=tenant_ids(tenants, store=source),
            start_ns=start_ns,
            end_ns=end_ns,
        )
        check_measurements(source, measurements)
        outcome = _copy(source, destination, selection, state=state, interrupt=interrupt)
        if outcome.is_complete and verify:
            _verify(source, destination, selection, interrupt=interrupt)
    if interrupt.is_set():
        click.echo(f"Interrupted. {RESUME}", err=True)
        sys.exit(128 + interrupt.signal_number)
    state.delete()
    _report(outcome, destination_place.redacted)


def _parse_urls(source_url: str, destination_url: str) -> tuple[StoreURL, StoreURL]:
    source = parse_store_url(source_url, source="--from")
    destination = parse_store_url(destination_url, source="--to")
    for option, url in (("--from", source), ("--to", destination)):
        if url.is_in_memory:
            raise InvalidInputError(f"{option} is an in-memory store, which this command loses.")
    if source.canonical == destination.canonical:
        raise InvalidInputError(
            f"--from and --to are the same store, {source.redacted}. Name another with --to."
        )
    return source, destination


def _copy(
    source: Store,
    destination: Store,
    selection: Selection,
    *,
    state: StateFile,
    interrupt: Interrupt,
) -> MigrationResult:
    line = ProgressLine()
    if state.path.exists():
        click.echo(f"Resuming from {state.path}", err=True)

    def show(progress: Progress) -> None:
        line.update(_chunk_text(progress.chunk), progress.points, progress.total_points)

    migration = Migration(source, destination, selection, state=state, pause=interrupt.wait)
    try:
        return migration.run(should_stop=interrupt.is_set, on_progress=show)
    except StoreUnavailableError as error:
        raise StoreUnavailableError(f"{error.message} {RESUME}") from error
    finally:
        line.close()


def _verify(
    source: Store, destination: Store, selection: Selection, *, interrupt: Interrupt
) -> None:
    mismatches = []
    checked, due = 0, time.monotonic() + _REPORT_SECONDS

    def show(chunk: ScanQuery) -> None:
        nonlocal checked, due
        checked += 1
        if time.monotonic() >= due:
            due = time.monotonic() + _REPORT_SECONDS
            click.echo(f"verified {checked:,} chunks, now {_chunk_text(chunk)}", err=True)

    compared = differences(source, destination, selection, on_chunk=show, pause=interrupt.wait)
    for difference in compared:
        mismatches.append(difference)
        if interrupt.is_set():
            return
    if mismatches:
        lines = [
            f"  {_chunk_text(mismatch.chunk)} {mismatch.field}: {mismatch.source_count:,} in the "
            f"source, {mismatch.destination_count:,} in the destination"
            for mismatch in mismatches[:_MAX_LISTED]
        ]
        others = (
            [f"  and {len(mismatches) - len(lines)} more"] if len(mismatches) > len(lines) else []
        )
        raise MigrationFaultError(
            "\n".join(["The stores don't have the same number of values:", *lines, *others])
        )
    omitted = omitted_fields(source, destination, selection)
    if omitted:
        click.echo(f"Not copied, because the destination stores no text: {', '.join(omitted)}")
    click.echo(f"Verified: both stores have the same number of values in {checked:,} chunks.")


def _report(outcome: MigrationResult, destination: str) -> None:
    existing = f" ({outcome.present:,} existed already)" if outcome.present else ""
    click.echo(f"{outcome.points - outcome.rejected:,} points are in {destination}{existing}.")
    if outcome.rejected:
        reasons = "\n".join(f"  {n:,} x {why}" for why, n in outcome.reasons.most_common())
        raise MigrationFaultError(
            f"The destination rejected {outcome.rejected:,} of {outcome.points:,} points:\n"
            f"{reasons}"
        )


def _chunk_text(chunk: ScanQuery) -> str:
    return f"{chunk.measurement} {from_ns(chunk.start_ns):%Y-%m-%d %H:%M}"

"""`vedette store repair`: check an embedded store, and set aside what is damaged."""

from contextlib import closing
from pathlib import Path
from typing import cast

import click

from cli.privileges import acting_as_owner
from core.clock import utc_now
from core.errors import InvalidInputError
from core.settings import load_server_settings
from timeseries.duckdb.recovery import aside_folder, close_notice, read_notice, recover
from timeseries.duckdb.store import DuckDBStore
from timeseries.duckdb.verification import drop_damaged_files, stored_samples, verify_tables
from timeseries.open_store import open_store
from timeseries.store import DamagedStoreError
from timeseries.store_url import parse_store_url


@click.command()
@click.option("--url", help="URL of the store. Defaults to TIMESERIES_URL.")
def repair(url: str | None) -> None:
    """Check all of an embedded store, and set aside what is damaged.

    Stop the server first. Prints what was lost, what is retained, and the folder with what was
    damaged; removes the message about it from the portal's pages.
    """
    url = url or load_server_settings().resolved_timeseries_url
    file = parse_store_url(url, source="--url").file
    if file is None:
        raise InvalidInputError("Only the embedded store (duckdb://) can be repaired here.")
    # What root makes must be the server's.
    with acting_as_owner(file.parent):
        lost, retained, folders = _repaired(url, file)
    for loss in lost:
        click.echo(f"lost: {loss}")
    click.echo(f"retained: {retained:,} samples")
    if folders:
        click.echo(f"What was damaged is in {', '.join(map(str, folders))}.")
    if not lost:
        click.echo("Nothing is damaged.")


def _repaired(url: str, file: Path) -> tuple[list[str], int, list[Path]]:
    """Return what is lost, how many samples are retained, and the folders with what was damaged."""
    aside = aside_folder(file, now=utc_now())
    with closing(_opened_readable(url, file)) as store:
        lost = list(drop_damaged_files(store, aside))
        retained = stored_samples(store)
    notice, folders = read_notice(file), [aside]
    if notice is not None:
        lost = [*notice.lost, *lost]
        folders.append(file.with_name(Path(notice.aside).name))
        close_notice(file, notice)
    return lost, retained, [folder for folder in folders if folder.exists()]


def _opened_readable(url: str, file: Path) -> DuckDBStore:
    """Open the store; recover it first if rows of its tables can't be read."""
    # A file of which nothing could be read is made anew.
    store = cast(
        "DuckDBStore", open_store(url, must_exist=read_notice(file) is None, recovers=True)
    )
    try:
        verify_tables(store)
    except DamagedStoreError as error:
        store.close()
        recover(file, error.message, now=utc_now())
        store = cast("DuckDBStore", open_store(url, recovers=True))
    return store

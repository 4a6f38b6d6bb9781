"""`vedette store`: inspect a time series store, export from it, migrate it to another.

All but `files` open the store themselves. One process can open the file of an embedded store, so
stop a running server first, or use the portal's API instead.
"""

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import click

from cli.client import print_table
from cli.local_time import local_seconds
from cli.store_common import (
    BEGINNING_NS,
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
from cli.store_files import files
from cli.store_migrate import migrate
from cli.store_repair import repair
from core.atomic_files import replacing
from core.clock import from_ns, to_ns, utc_now
from core.errors import ConflictError, InvalidInputError
from core.quantities import format_size
from core.settings import load_server_settings
from timeseries.migration.export import ExportFormat, Piece
from timeseries.migration.export import export as export_pieces
from timeseries.store import Extent, ScanQuery, Store
from timeseries.store_url import parse_store_url

STDOUT = "-"
_HEADER = ("measurement", "fields", "tags", "points", "oldest", "newest")
_POINTS = _HEADER.index("points")
_AT_LEAST = ">="

url_option = click.option("--url", help="URL of the store. Defaults to TIMESERIES_URL.")


class _InterruptedError(Exception):
    """Ctrl-C or SIGTERM in the middle of a file."""


@click.group()
def store() -> None:
    """Inspect, migrate and export time series."""


store.add_command(files)
store.add_command(migrate)
store.add_command(repair)


@store.command()
@url_option
def stats(url: str | None) -> None:
    """Show the measurements of a store with their number of points and time range."""
    url = url or load_server_settings().resolved_timeseries_url
    with opened(url, option="--url") as store:
        rows = [_HEADER, *_stats(store)]
    print_table(rows)
    if any(row[_POINTS].startswith(_AT_LEAST) for row in rows):
        click.echo(f"\n{_AT_LEAST}: lower bound; this store counts values, not points")
    parsed, size = parse_store_url(url), ""
    if parsed.file:
        databases = (parsed.file, parsed.file.with_name(f"{parsed.file.name}.wal"))
        size_bytes = sum(file.stat().st_size for file in databases if file.exists())
        size = f": {format_size(size_bytes)} on disk"
    click.echo(f"\n{len(rows) - 1} measurements in {parsed.redacted}{size}")


@store.command()
@url_option
@click.option(
    "--measurement", "measurements", multiple=True, required=True, help="To export; repeatable."
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice([export_format.value for export_format in ExportFormat]),
    required=True,
    help="File format.",
)
@click.option(
    "--output", required=True, help="File; directory for several measurements; - for stdout (CSV)."
)
@since_option
@until_option
@tenant_option
def export(
    *,
    url: str | None,
    measurements: tuple[str, ...],
    format_name: str,
    output: str,
    since: datetime | None,
    until: datetime | None,
    tenants: tuple[str, ...],
) -> None:
    """Export samples to Parquet or CSV files.

    A file gets its name when it is complete. For several measurements, OUTPUT is a directory with
    one file each.
    """
    file_format = ExportFormat(format_name)
    measurements = tuple(dict.fromkeys(measurements))
    targets = _targets(measurements, file_format, output)
    start_ns, end_ns = span_ns(since, until)
    url = url or load_server_settings().resolved_timeseries_url
    with opened(url, option="--url") as source, interruptible() as interrupt:
        ids = tenant_ids(tenants, store=source)
        check_measurements(source, measurements, tenants=ids)
        for name, target in targets.items():
            query = ScanQuery(measurement=name, start_ns=start_ns, end_ns=end_ns, tenants=ids)
            pieces = _with_progress(
                export_pieces(source, query, file_format), source, query, interrupt
            )
            try:
                rows = _to_stdout(pieces) if target is None else _to_file(pieces, target)
            except _InterruptedError:
                click.echo(f"Interrupted. {name} is not exported.", err=True)
                sys.exit(128 + interrupt.signal_number)
            click.echo(f"{name}: {rows:,} rows in {target or 'stdout'}", err=target is None)


def _stats(store: Store) -> Iterator[tuple[str, ...]]:
    end_ns = to_ns(utc_now() + timedelta(days=1))
    for name in store.measurements(tenants=None):
        query = ScanQuery(measurement=name, start_ns=BEGINNING_NS, end_ns=end_ns, tenants=None)
        counts = len(store.fields(name, tenants=None)), len(store.tags(name, tenants=None))
        yield name, *map(str, counts), *_extent_cells(store.extent(query))


def _extent_cells(extent: Extent | None) -> tuple[str, str, str]:
    if extent is None:
        return "0", "-", "-"
    oldest, newest = from_ns(extent.start_ns), from_ns(extent.end_ns - 1)
    points = f"{extent.points:,}" if extent.is_exact else f"{_AT_LEAST} {extent.points:,}"
    return points, local_seconds(oldest), local_seconds(newest)


def _targets(
    measurements: tuple[str, ...], file_format: ExportFormat, output: str
) -> dict[str, Path | None]:
    if output == STDOUT:
        if file_format is not ExportFormat.CSV or len(measurements) > 1:
            raise InvalidInputError("--output - supports one measurement as CSV. Name a file.")
        return {measurements[0]: None}
    path = Path(output)
    if len(measurements) == 1 and not path.is_dir():
        return {measurements[0]: path}
    if path.exists() and not path.is_dir():
        raise ConflictError(f"--output {path} is a file. Several measurements need a directory.")
    return {name: path / f"{quote(name, safe='')}.{file_format}" for name in measurements}


def _with_progress(
    pieces: Iterator[Piece], source: Store, query: ScanQuery, interrupt: Interrupt
) -> Iterator[Piece]:
    """Yield the pieces and show progress, until interrupted."""
    line, total = ProgressLine(), None
    for piece in pieces:
        if interrupt.is_set():
            raise _InterruptedError
        yield piece
        if total is None:
            extent = source.extent(query)
            total = extent.points if extent else 0
        line.update(query.measurement, piece.rows, total)
    line.close()


def _to_stdout(pieces: Iterator[Piece]) -> int:
    rows = 0
    for piece in pieces:
        sys.stdout.buffer.write(piece.data)
        rows = piece.rows
    return rows


def _to_file(pieces: Iterator[Piece], path: Path) -> int:
    """Write a file, which appears under its name when it is complete."""
    rows = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o666) as file:
            for piece in pieces:
                file.write(piece.data)
                rows = piece.rows
    except OSError as error:
        raise InvalidInputError(f"{path} can't be written: {error.strerror or error}.") from error
    return rows

"""`vedette store`: look into a time series store, move it to another, export from it.

These commands open the store themselves. An embedded store's file belongs to one process at a
time, so a running server has to stop first, or the portal's API is asked instead.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click

from cli.store_export import export
from cli.store_migrate import migrate
from cli.store_options import open_existing
from core.clock import from_ns, to_ns, utc_now
from core.settings import load_server_settings
from timeseries.store import Extent, ScanQuery, Store
from timeseries.store_url import parse_store_url

_HEADER = ("measurement", "fields", "tags", "points", "oldest", "newest")
_POINTS = _HEADER.index("points")
_AT_LEAST = ">="


@click.group()
def store() -> None:
    """Look into a time series store, move it to another, export from it."""


store.add_command(migrate)
store.add_command(export)


@store.command()
@click.option("--url", help="Which store; this server's (TIMESERIES_URL) when left out.")
def stats(url: str | None) -> None:
    """Show what a store holds: measurements, points, oldest and newest samples."""
    url = url or load_server_settings().resolved_timeseries_url
    with open_existing(url, option="--url") as opened:
        rows = [_HEADER, *_rows(opened)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    if any(row[_POINTS].startswith(_AT_LEAST) for row in rows):
        click.echo(f"\n{_AT_LEAST}: at least so many; this store counts values, not points")
    parsed = parse_store_url(url)
    size = f": {_size_text(parsed.file)}" if parsed.file else ""
    click.echo(f"\n{len(rows) - 1} measurements in {parsed.redacted}{size}")


def _rows(opened: Store) -> Iterator[tuple[str, ...]]:
    end_ns = to_ns(utc_now() + timedelta(days=1))
    for name in opened.measurements(tenants=None):
        query = ScanQuery(measurement=name, start_ns=-(2**63), end_ns=end_ns, tenants=None)
        known = len(opened.fields(name, tenants=None)), len(opened.tags(name, tenants=None))
        yield name, *map(str, known), *_extent_cells(opened.extent(query))


def _extent_cells(extent: Extent | None) -> tuple[str, str, str]:
    if extent is None:
        return "0", "-", "-"
    oldest, newest = from_ns(extent.start_ns), from_ns(extent.end_ns - 1)
    points = f"{extent.points:,}"
    if not extent.is_exact:
        points = f"{_AT_LEAST} {points}"
    return points, f"{oldest:%Y-%m-%d %H:%M:%S}", f"{newest:%Y-%m-%d %H:%M:%S}"


def _size_text(path: Path) -> str:
    files = [path, path.with_name(f"{path.name}.wal")]
    size_bytes = sum(file.stat().st_size for file in files if file.exists())
    return f"{size_bytes / 1e6:,.1f} MB on disk"

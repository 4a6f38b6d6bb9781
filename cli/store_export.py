"""`vedette store export`: samples as Parquet or CSV files."""

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import click

from cli.store_options import (
    Instant,
    open_existing,
    span_ns,
    tenant_ids,
)
from cli.store_progress import ProgressLine, StopRequest, stop_on_signals
from core.errors import ConflictError, InvalidInputError
from core.settings import load_server_settings
from timeseries.moving.export import ExportFormat, Piece
from timeseries.moving.export import export as export_pieces
from timeseries.store import ScanQuery, Store

STDOUT = "-"


class _Stopped(Exception):  # noqa: N818 - not an error: somebody asked
    """Ctrl-C or SIGTERM in the middle of a file."""


@click.command()
@click.option("--url", help="Which store; this server's (TIMESERIES_URL) when left out.")
@click.option(
    "--measurement", "measurements", multiple=True, required=True, help="May be repeated."
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice([one.value for one in ExportFormat]),
    required=True,
    help="What to write.",
)
@click.option(
    "--output", required=True, help="File; a folder for several measurements; - for stdout (CSV)."
)
@click.option("--since", type=Instant(), help="First day or instant (UTC).")
@click.option("--until", type=Instant(), help="Day or instant to stop before (UTC).")
@click.option("--tenant", "tenants", multiple=True, help="Only this tenant (slug or id); repeat.")
def export(
    *,
    url: str | None,
    measurements: tuple[str, ...],
    file_format: str,
    output: str,
    since: datetime | None,
    until: datetime | None,
    tenants: tuple[str, ...],
) -> None:
    """Write samples to a Parquet or CSV file.

    A file appears under its name when it is whole. With several measurements OUTPUT is a folder
    with one file for each.
    """
    wanted = ExportFormat(file_format)
    measurements = tuple(dict.fromkeys(measurements))
    targets = _targets(measurements, wanted, output)
    start_ns, end_ns = span_ns(since, until)
    with (
        open_existing(
            url or load_server_settings().resolved_timeseries_url, option="--url"
        ) as store,
        stop_on_signals() as stop,
    ):
        ids = tenant_ids(tenants, stores=[store])
        _check_names(store, measurements, tenants=ids)
        for name, target in targets.items():
            query = ScanQuery(measurement=name, start_ns=start_ns, end_ns=end_ns, tenants=ids)
            pieces = _shown(export_pieces(store, query, wanted), store, query, stop)
            try:
                rows = _to_stdout(pieces) if target is None else _to_file(pieces, target)
            except _Stopped:
                click.echo(f"Stopped before {name} was whole.", err=True)
                sys.exit(128 + stop.signal_number)
            click.echo(f"{name}: {rows:,} rows in {target or 'stdout'}", err=target is None)


def _check_names(
    store: Store, measurements: tuple[str, ...], *, tenants: tuple[str, ...] | None
) -> None:
    missing = set(measurements).difference(store.measurements(tenants=tenants))
    if missing:
        whose = " of these tenants" if tenants is not None else ""
        raise InvalidInputError(
            f"The store has no measurement {', '.join(sorted(missing))}{whose}; nothing was "
            "written. `vedette store stats` lists those it has."
        )


def _targets(
    measurements: tuple[str, ...], file_format: ExportFormat, output: str
) -> dict[str, Path | None]:
    if output == STDOUT:
        if file_format is not ExportFormat.CSV or len(measurements) > 1:
            raise InvalidInputError("--output - takes one measurement as CSV; name a file.")
        return {measurements[0]: None}
    path = Path(output)
    if len(measurements) == 1 and not path.is_dir():
        return {measurements[0]: path}
    if path.exists() and not path.is_dir():
        raise ConflictError(f"--output {path} is a file; several measurements need a folder.")
    return {name: path / f"{quote(name, safe='')}.{file_format}" for name in measurements}


def _shown(
    pieces: Iterator[Piece], store: Store, query: ScanQuery, stop: StopRequest
) -> Iterator[Piece]:
    """Yield the pieces with progress beside, until somebody asks to stop."""
    line, total = ProgressLine(), None
    for piece in pieces:
        if stop.is_made():
            raise _Stopped
        yield piece
        if total is None:
            extent = store.extent(query)
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
    """Write a file under a temporary name beside its own, and rename it when it is whole."""
    partial = path.with_name(f".{path.name}.part")
    rows = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece.data)
                rows = piece.rows
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise InvalidInputError(f"{path} can't be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return rows

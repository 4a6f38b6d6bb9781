"""`vedette store files`: the files of samples that other programs may read, and how."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from cli.database import open_session
from core.errors import InvalidInputError, NotFoundError
from core.settings import load_server_settings
from tenants.tenants import find_tenant
from timeseries.duckdb.files.engines import Engine, OpenTable, statements
from timeseries.duckdb.files.files import Files, LocalFiles
from timeseries.duckdb.files.layout import COLUMNS_LIST, FILES_LIST, partition
from timeseries.duckdb.files.s3 import S3Files
from timeseries.store import Resolution
from timeseries.store_url import StoreURL, files_folder, parse_store_url

JSON = "json"
_UNSAFE = re.compile(r"[^a-z0-9_]")


@click.command()
@click.option("--url", help="URL of the store. Defaults to TIMESERIES_URL.")
@click.option("--tenant", required=True, help="Tenant (slug or ID).")
@click.option("--measurement", required=True, help="Measurement, such as gpu.")
@click.option(
    "--resolution",
    type=click.Choice([resolution.value for resolution in Resolution]),
    default=Resolution.RAW.value,
    show_default=True,
    help="Samples, or roll-ups by this time.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice([JSON, *(engine.value for engine in Engine)]),
    default=JSON,
    show_default=True,
    help="The list of files, or statements that make a view of them in another program.",
)
def files(
    *, url: str | None, tenant: str, measurement: str, resolution: str, format_name: str
) -> None:
    """Show the files that other programs may read.

    Works while the server runs. The store needs files in the open layout: add layout=open to its
    URL.
    """
    parsed = parse_store_url(url or load_server_settings().resolved_timeseries_url, source="--url")
    if parsed.file is None:
        raise InvalidInputError("Only the embedded store (duckdb:///path) has files.")
    place = parsed.files.rstrip("/") or str(files_folder(parsed.file).resolve())
    tenant_id = _tenant_id(tenant)
    folder = partition(tenant_id, measurement)
    with TemporaryDirectory() as scratch:
        content = _lists(_opened(parsed, place, Path(scratch)), folder)
    if content is None:
        raise InvalidInputError(
            f"{place} has no list of files of measurement {measurement!r} of tenant {tenant!r}. "
            "Its first files are written when a day is settled, half an hour after midnight UTC, "
            "or earlier if there are many samples. The store's URL needs layout=open."
        )
    entries, columns = (
        [entry for entry in map(json.loads, text.splitlines()) if entry["resolution"] == resolution]
        for text in content
    )
    if format_name == JSON:
        for entry in entries:
            click.echo(json.dumps(entry))
        return
    if not entries:
        raise InvalidInputError(
            f"There are no files of {measurement!r} with resolution {resolution}."
        )
    suffix = "" if resolution == Resolution.RAW else f"_{resolution}"
    table = OpenTable(
        place=place,
        partition=folder,
        resolution=Resolution(resolution),
        name=f"vedette_{_UNSAFE.sub('_', measurement.lower())}{suffix}",
        columns={entry["column"]: entry["type"] for entry in columns},
        endpoint=os.environ.get("AWS_ENDPOINT_URL", ""),
    )
    click.echo(statements(table, Engine(format_name)), nl=False)


def _opened(url: StoreURL, place: str, scratch: Path) -> Files:
    if url.files.startswith("s3://"):
        return S3Files(place, folder=scratch, cache_bytes=0)
    return LocalFiles(Path(place))


def _lists(place: Files, folder: str) -> tuple[str, str] | None:
    """Return the lists of files and of columns; None if there are none."""
    try:
        files_list, columns_list = (
            place.content(f"{folder}/{name}").decode() for name in (FILES_LIST, COLUMNS_LIST)
        )
    except FileNotFoundError:
        return None
    return files_list, columns_list


def _tenant_id(name: str) -> str:
    """Return the ID of a tenant by its slug; another name is taken as an ID."""
    with suppress(NotFoundError), open_session() as session:  # a host without a server has none
        if tenant := find_tenant(session, name):
            return tenant.id
    return name

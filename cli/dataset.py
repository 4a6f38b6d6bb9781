"""`vedette dataset`: files for jobs, from a source or uploaded."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from cli.client import (
    Columns,
    all_items,
    appliance_id,
    fetch_items,
    one_named,
    output_option,
    print_object,
    print_rows,
)
from cli.dataset_connections import PATH as CONNECTIONS
from cli.dataset_connections import connection
from cli.dataset_copies import copies, prefetch, unpin
from cli.local_time import local_minutes
from core.errors import InvalidInputError, VedetteError
from core.quantities import format_size
from vedette.client import Client
from vedette.datasets import PARALLEL, Progress, download_version, upload_version

PATH = "/datasets"
POLL_SECONDS = 2.0
_REPORT_SECONDS = 0.5
_OPEN = ("indexing", "uploading")
_appliance_option = click.option(
    "--appliance", help="Name or ID of the appliance that reads it; for file:// and nfs://."
)
_wait_option = click.option("--wait/--no-wait", default=True, help="Until it is read, or fails.")


@click.group()
def dataset() -> None:
    """Manage datasets: files that jobs read, staged on appliances before they start."""


for command in (connection, prefetch, unpin, copies):
    dataset.add_command(command)


@dataset.command()
@click.argument("name")
@click.argument("url")
@click.option("--description", default="", help="What it is.")
@click.option("--connection", "connection_name", help="Name or ID of the credentials for it.")
@_appliance_option
@_wait_option
def add(
    name: str,
    url: str,
    *,
    description: str,
    connection_name: str | None,
    appliance: str | None,
    wait: bool,
) -> None:
    """Add dataset NAME from URL; an appliance reads it, and makes version 1.

    \b
    vedette dataset add imagenet s3://acme-data/imagenet --connection minio
    vedette dataset add images file:///data/images --appliance dgx-01
    """
    with Client() as client:
        body = {
            "name": name,
            "source_url": url,
            "description": description,
            "connection_id": _connection_id(client, connection_name),
            "appliance_id": appliance_id(client, appliance) if appliance else None,
        }
        created = client.post(PATH, body)
        click.echo(f"{created['id']} {name}")
        [version] = client.get(f"{PATH}/{created['id']}/versions")["items"]
        _finish(client, version, wait=wait)


@dataset.command()
@click.argument("name")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--description", default="", help="What it is, for a new dataset.")
@click.option(
    "--parallel", type=click.IntRange(1, 16), default=PARALLEL, help="Parts sent at a time."
)
def upload(name: str, path: Path, *, description: str, parallel: int) -> None:
    """Upload a folder or file at PATH as a new version of dataset NAME, which is added if missing.

    What the portal has already is not sent again: run it again after a break.
    """
    with Client() as client:
        present = [item for item in all_items(client, PATH, search=name) if item["name"] == name]
        body = {"name": name, "description": description}
        target = present[0] if present else client.post(PATH, body)
        with _reported(_upload_line) as report:
            version = upload_version(client, target["id"], path, parallel=parallel, report=report)
    click.echo(_summary(version))


@dataset.command("list")
@click.option("--search", help="A part of the name, description or source.")
@output_option
def list_datasets(search: str | None, output: str) -> None:
    """List the datasets with their newest versions."""
    columns: Columns = {
        "NAME": "name",
        "SOURCE": lambda row: row["source_url"] or "uploaded",
        "VERSION": lambda row: str((row["newest"] or {}).get("number", "-")),
        "FILES": lambda row: str((row["newest"] or {}).get("file_count", "-")),
        "SIZE": lambda row: format_size(row["newest"]["total_bytes"]) if row["newest"] else "-",
        "CREATED": lambda row: local_minutes(row["created_at"]),
    }
    empty = "No datasets. Add one: vedette dataset upload NAME FOLDER"
    print_rows(fetch_items(PATH, search=search or None), output, columns, empty=empty)


@dataset.command()
@click.argument("name")
@output_option
def show(name: str, output: str) -> None:
    """Show dataset NAME (or ID) with its versions."""
    with Client() as client:
        row = _named(client, name)
        versions = list(all_items(client, f"{PATH}/{row['id']}/versions"))
    if output != "table":
        print_object({**row, "versions": versions}, output) if output != "name" else click.echo(
            row["name"]
        )
        return
    click.echo(f"{row['name']}  {row['source_url'] or 'uploaded'}")
    if row["description"]:
        click.echo(row["description"])
    columns: Columns = {
        "VERSION": "number",
        "STATE": "state",
        "FILES": "file_count",
        "SIZE": lambda version: format_size(version["total_bytes"]),
        "CREATED": lambda version: local_minutes(version["created_at"]),
        "DIGEST": lambda version: (version["digest"] or "-")[:12],
        "MESSAGE": "message",
    }
    if versions:
        print_rows(versions, output, columns)


@dataset.command()
@click.argument("name")
@click.option("--prefix", help="Only files whose path begins with this.")
@click.option("--checksums", is_flag=True, help="Print as `sha256sum` does, to check copies by it.")
def files(name: str, *, prefix: str | None, checksums: bool) -> None:
    """List the files of dataset NAME, or of a version as NAME@NUMBER."""
    with Client() as client:
        version, after = _version(client, name), ""
        while True:
            page = client.get(
                f"/dataset-versions/{version['id']}/files",
                after=after,
                prefix=prefix,
                page_size=500,
            )
            for file in page["items"]:
                size = f"{format_size(file['size_bytes']):>10}"
                click.echo(f"{file['sha256'] if checksums else size}  {file['path']}")
            after = page["next"]
            if after is None:
                return


@dataset.command("new-version")
@click.argument("name")
@_appliance_option
@_wait_option
def new_version(name: str, *, appliance: str | None, wait: bool) -> None:
    """Read the source of dataset NAME again, for a new version."""
    with Client() as client:
        row = _named(client, name)
        if not row["source_url"]:
            raise InvalidInputError(
                f"{name} has no source. Upload its files: vedette dataset upload {name} FOLDER"
            )
        body = {"appliance_id": appliance_id(client, appliance) if appliance else None}
        _finish(client, client.post(f"{PATH}/{row['id']}/versions", body), wait=wait)


@dataset.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
def delete(name: str, *, yes: bool) -> None:
    """Delete dataset NAME, or a version as NAME@NUMBER, if no job uses it."""
    with Client() as client:
        is_version = "@" in name
        target = _version(client, name) if is_version else _named(client, name)
        if not yes:
            click.confirm(f"Delete {name}? This can't be undone.", abort=True, err=True)
        client.delete(f"{'/dataset-versions' if is_version else PATH}/{target['id']}")
    click.echo(f"{name} deleted")


@dataset.command()
@click.argument("name")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def download(name: str, folder: Path) -> None:
    """Write the files of the uploaded dataset NAME, or NAME@NUMBER, below FOLDER."""
    with Client() as client:
        version = _version(client, name)
        with _reported(_download_line) as report:
            progress = download_version(client, version, folder, report=report)
    fetched = format_size(progress.sent_bytes)
    click.echo(f"{version['label']}: {progress.files} files in {folder}, {fetched} fetched")


def _finish(client: Client, version: dict[str, Any], *, wait: bool) -> None:
    text = ""
    while wait and version["state"] in _OPEN:
        line = version["message"] or f"Read {format_size(version['indexed_bytes'])}"
        if line != text:
            click.echo(f"{version['label']}: {line}", err=True)
            text = line
        time.sleep(POLL_SECONDS)
        version = client.get(f"/dataset-versions/{version['id']}")
    if version["state"] == "failed":
        raise InvalidInputError(f"{version['label']} failed: {version['message']}")
    click.echo(_summary(version))


def _summary(version: dict[str, Any]) -> str:
    if version["state"] in _OPEN:
        return f"{version['label']} is {version['state']}"
    size = format_size(version["total_bytes"])
    return f"{version['label']}: {version['file_count']} files, {size}"


def _named(client: Client, name: str) -> dict[str, Any]:
    return one_named(all_items(client, PATH), name, noun="dataset", command="vedette dataset list")


def _version(client: Client, name: str) -> dict[str, Any]:
    """Return a version by `NAME@NUMBER`, or the newest that is ready."""
    dataset_name, _, number = name.partition("@")
    row = _named(client, dataset_name)
    if number:
        for version in all_items(client, f"{PATH}/{row['id']}/versions"):
            if str(version["number"]) == number:
                return version
        raise InvalidInputError(
            f"{dataset_name} has no version {number!r}. See: vedette dataset show {dataset_name}"
        )
    if row["newest"] is None:
        raise InvalidInputError(
            f"{dataset_name} has no version that is ready. See: vedette dataset show {dataset_name}"
        )
    newest: dict[str, Any] = row["newest"]
    return newest


def _connection_id(client: Client, name: str | None) -> str | None:
    if name is None:
        return None
    items, command = all_items(client, CONNECTIONS), "vedette dataset connection list"
    return str(one_named(items, name, noun="data connection", command=command)["id"])


def _upload_line(progress: Progress) -> str:
    read, sent = format_size(progress.bytes), format_size(progress.sent_bytes)
    return f"{progress.files} files, {read} read, {sent} sent"


def _download_line(progress: Progress) -> str:
    done, fetched = format_size(progress.bytes), format_size(progress.sent_bytes)
    return f"{progress.files} of {progress.total_files} files, {done}, {fetched} fetched"


@contextmanager
def _reported(line: Callable[[Progress], str]) -> Iterator[Callable[[Progress], None]]:
    """Give a function that prints progress to stderr: one line that changes, on a terminal."""
    is_terminal, last, printed_at = sys.stderr.isatty(), Progress(), 0.0

    def report(progress: Progress) -> None:
        nonlocal last, printed_at
        last = progress
        if is_terminal and time.monotonic() >= printed_at + _REPORT_SECONDS:
            printed_at = time.monotonic()
            click.echo(f"\r\033[K{line(progress)}", nl=False, err=True)

    try:
        yield report
    except VedetteError:
        if is_terminal:
            click.echo(err=True)
        raise
    click.echo(f"\r\033[K{line(last)}" if is_terminal else line(last), err=True)

"""`vedette job artifacts` and `download`: the files in output folders of jobs."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import click

from cli.client import Columns, output_option, print_rows
from cli.local_time import local_seconds
from core.errors import InvalidInputError
from core.quantities import format_size
from vedette.client import Client


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--prefix", default="", metavar="PATH", help="Only files whose paths begin so.")
@output_option
def artifacts(name: str, prefix: str, output: str) -> None:
    """List the files in the output folders of a JOB."""
    with Client() as client:
        files = list(client.artifacts(name, prefix=prefix))
    columns: Columns = {
        "PATH": "path",
        "SIZE": lambda file: format_size(file["size_bytes"]),
        "CHANGED": lambda file: local_seconds(file["modified_at"]),
        "ATTEMPT": lambda file: str(file["attempt_number"] or ""),
    }
    print_rows(files, output, columns, name="path")


@click.command()
@click.argument("name", metavar="JOB")
@click.argument("path", required=False, default="")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder to put the files into. Defaults to the current one.",
)
def download(name: str, path: str, folder: Path) -> None:
    """Download the results of a JOB: a file or folder by its PATH in the container, or all.

    Files that are there with the same content are not downloaded again.
    """
    prefix = path.rstrip("/")
    with Client() as client:
        job_id = client.job(name).id
        files = [
            file
            for file in client.artifacts(job_id, prefix=prefix)
            if not prefix or f"{file['path']}/".startswith(f"{prefix}/")
        ]
        if not files:
            what = f"no file {path!r} in its results" if path else "no results yet"
            raise InvalidInputError(f"The job {name!r} has {what}. See: vedette job artifacts")
        for file in files:
            target = folder / _relative(file["path"])
            is_new = not _is_there(target, file)
            if is_new:
                _download(client, job_id, file, target)
            size = format_size(file["size_bytes"])
            click.echo(f"{target}  {size}{'' if is_new else '  (unchanged)'}")


def _relative(path: str) -> Path:
    """Return where a file goes below the chosen folder.

    Raises:
        InvalidInputError: it would go elsewhere.
    """
    parts = PurePosixPath(path).parts[1:]
    if not parts or ".." in parts:
        raise InvalidInputError(f"The portal names a file {path!r}, which is no path in a folder.")
    return Path(*parts)


def _is_there(target: Path, file: Mapping[str, Any]) -> bool:
    try:
        if not target.is_file() or target.stat().st_size != file["size_bytes"]:
            return False
        with target.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            return digest == str(file["sha256"])
    except OSError:
        return False


def _download(client: Client, job_id: str, file: Mapping[str, Any], target: Path) -> None:
    """Download a file, which appears at its place once it is complete and has its hash."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".vedette-", delete=False) as part:
        partial = Path(part.name)
        try:
            for data in client.download_artifact(job_id, file["path"]):
                digest.update(data)
                part.write(data)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    if digest.hexdigest() != file["sha256"]:
        partial.unlink()
        raise InvalidInputError(
            f"{file['path']} changed while it was downloaded, or was damaged. Download it again."
        )
    partial.chmod(0o644)
    partial.replace(target)

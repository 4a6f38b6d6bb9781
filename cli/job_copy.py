"""`vedette job cp`: files and folders out of running jobs, and into them.

A copy appears at its place once all of it has arrived: it is unpacked beside it before.
"""

import io
import os
import posixpath
import shutil
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click

from core.errors import InvalidInputError
from core.quantities import format_value
from vedette.client import Client
from vedette.rest import COPY_BYTES

SHOWN_EVERY_SECONDS = 0.5
STANDARD = "-"


@click.command("cp")
@click.argument("source")
@click.argument("target")
def copy(source: str, target: str) -> None:
    """Copy a file or folder out of a running job (JOB:PATH) or into it.

    \b
    vedette job cp train:/work/model.pt .       # out
    vedette job cp ./src train:/work/           # in; folders that exist are merged
    vedette job cp train:logs - | tar -t        # as a tar archive; also: - train:/work
    """
    out, into = _remote(source), _remote(target)
    if (out is None) == (into is None):
        raise InvalidInputError(
            "Either SOURCE or TARGET must be in a job, such as train:/work/model.pt. A local "
            "name with a colon begins with ./"
        )
    with Client() as client:
        if out is not None:
            _copy_out(client, *out, target)
        elif into is not None:
            _copy_in(client, source, *into)


def _remote(text: str) -> tuple[str, str] | None:
    job, colon, path = text.partition(":")
    is_local = not colon or not job or "/" in job
    return None if is_local else (job, path or ".")


def _copy_out(client: Client, job: str, path: str, target: str) -> None:
    chunks = _counted(client.copy_from(job, path))
    if target == STANDARD:
        for data in chunks:
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    name = posixpath.basename(posixpath.normpath(path)) or "."
    place = Path(target)
    if place.is_dir() and name != ".":
        place /= name
    if target.endswith("/") and not Path(target).is_dir():
        raise InvalidInputError(f"There is no folder {target}")
    if not place.absolute().parent.is_dir():
        raise InvalidInputError(f"There is no folder {place.parent}")
    with tempfile.TemporaryDirectory(prefix=".vedette-", dir=place.absolute().parent) as folder:
        _unpack(chunks, Path(folder))
        if not os.path.lexists(Path(folder) / name):
            raise InvalidInputError(f"{path} was not copied. Copy what it links to.")
        _move(Path(folder) / name, place)


def _unpack(chunks: Iterator[bytes], folder: Path) -> None:
    """Unpack an archive, which is the job's and not trusted."""
    if not hasattr(tarfile, "data_filter"):
        raise InvalidInputError(
            "This Python can't unpack archives safely. Update it to 3.11.4 or later, or copy to "
            "standard output: vedette job cp JOB:PATH - | tar -x"
        )
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Reader(chunks)), mode="r|") as archive:
            archive.extractall(folder, members=_useful(archive, folder), filter="data")
    except tarfile.TarError as error:
        raise InvalidInputError(f"The copy was refused: {error}.") from error
    for _ in chunks:
        pass  # an error may follow the end of the archive


def _useful(archive: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members that have a meaning here; the others are skipped with a warning.

    Raises:
        tarfile.FilterError: one would be unpacked outside of the folder.
    """
    skipped: set[str] = set()
    for member in archive:
        problem = f"it links to {member.linkname}, which is not in the copy"
        try:
            if not (member.islnk() and member.linkname in skipped):
                tarfile.data_filter(member, str(folder))
                yield member
                continue
        except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
            pass
        except tarfile.SpecialFileError:
            problem = "it is a device, socket or pipe"
        skipped.add(member.name)
        click.echo(f"Skipped {member.name}: {problem}.", err=True)


def _move(source: Path, place: Path) -> None:
    """Move to its place; folders that exist are merged."""
    if source.is_dir() and not source.is_symlink() and place.is_dir():
        shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True, copy_function=os.replace)
    elif place.is_dir():
        raise InvalidInputError(f"{place} is a folder.")
    else:
        source.replace(place)


def _copy_in(client: Client, source: str, job: str, path: str) -> None:
    if source == STANDARD:
        chunks = iter(lambda: sys.stdin.buffer.read(COPY_BYTES), b"")
        client.copy_to(job, path, _counted(chunks))
        return
    local = Path(source)
    if not local.exists():
        raise InvalidInputError(f"There is no file or folder {source}")
    if path.endswith("/") or _is_folder(client, job, path):
        folder, name = path, local.resolve().name
    else:
        folder, name = posixpath.split(path)
    client.copy_to(job, folder or ".", _counted(_archive(local, name)))


def _is_folder(client: Client, job: str, path: str) -> bool:
    with client.exec(job, ["sh", "-c", '[ -d "$1" ]', "sh", path]) as running:
        return running.wait(lambda _data, _is_error: None) == 0


def _archive(local: Path, name: str) -> Iterator[bytes]:
    """Yield a tar archive of a file or folder under a name; a thread writes it into a pipe."""
    reading, writing = os.pipe()
    problems: list[Exception] = []

    def write() -> None:
        try:
            with (
                os.fdopen(writing, "wb") as pipe,
                tarfile.open(fileobj=pipe, mode="w|", dereference=False) as archive,
            ):
                archive.add(local, arcname=name)
        except Exception as error:  # noqa: BLE001 - raised again by the reader
            problems.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    with os.fdopen(reading, "rb") as pipe:
        while data := pipe.read(COPY_BYTES):
            yield data
    thread.join()
    if problems:  # the portal then drops what it has
        raise InvalidInputError(f"{local} can't be read: {problems[0]}.") from problems[0]


def _counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks, and show on a terminal how much it was."""
    size, shown_at = 0, time.monotonic()
    is_shown = sys.stderr.isatty()
    for data in chunks:
        yield data
        size += len(data)
        if is_shown and time.monotonic() - shown_at > SHOWN_EVERY_SECONDS:
            shown_at = time.monotonic()
            click.echo(f"\r{format_value('copied_bytes', size)}\x1b[K", err=True, nl=False)
    if is_shown:
        click.echo(f"\r{format_value('copied_bytes', size)} copied\x1b[K", err=True)


class _Reader(io.RawIOBase):
    """A file of chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read into a buffer; 0 at the end."""
        view = memoryview(buffer)  # type: ignore[arg-type] # typeshed names it privately
        if not self._left:
            self._left = next(self._chunks, b"")
        size = min(len(view), len(self._left))
        view[:size], self._left = self._left[:size], self._left[size:]
        return size

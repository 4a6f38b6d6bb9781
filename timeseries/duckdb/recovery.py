"""Recovery of an embedded store whose files were damaged, such as by a bad sector.

DuckDB refuses to open a file or log with one wrong byte, and the whole server with it. Here, what
is damaged is set aside in a folder beside the store, `samples.duckdb.damaged-TIME`, and never
deleted. What can be read is retained:

- of a damaged log, the commits before the damage;
- of a damaged file, the rows of each table outside damaged blocks;
- files of samples, whether the file lists them or not.

The notice `samples.duckdb.damage.json` says what happened, until `vedette store repair`.
"""

import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import duckdb

from core.atomic_files import replace_file
from core.quantities import format_size
from timeseries.duckdb.files.adoption import adopt
from timeseries.duckdb.files.files import Files, LocalFiles
from timeseries.duckdb.files.segments import create_manifest, read_segments, segment_paths
from timeseries.duckdb.schema import quoted

_log = logging.getLogger(__name__)
_POSITION = re.compile(r"Corrupt WAL file: entry at byte position (\d+)")
# DuckDB reads a vector of so many rows at once.
_LEAST_ROWS = 2_048


@dataclass
class Notice:
    """What happened to a store.

    Attributes:
        at: when it was found, as text.
        aside: the folder with what was damaged.
        lost: a sentence for each loss.
        adopts_files: whether the files of samples that the manifest lacks are to be listed in it;
            they are set aside otherwise. None once that is done.
    """

    at: str
    aside: str
    lost: list[str] = field(default_factory=list)
    adopts_files: bool | None = None

    @property
    def text(self) -> str:
        """The notice as one line."""
        return f"Found {self.at}. {' '.join(self.lost)} What was damaged is in {self.aside}."


def read_notice(file: Path) -> Notice | None:
    """Return the notice of a store; None if it was not damaged, or is repaired."""
    try:
        return Notice(**json.loads(notice_path(file).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def close_notice(file: Path, notice: Notice) -> None:
    """Move the notice to what was set aside, so that nothing shows it any longer."""
    folder = file.with_name(Path(notice.aside).name)  # the store may have been moved
    if folder.exists():
        notice_path(file).replace(folder / notice_path(file).name)
    else:
        notice_path(file).unlink()


def write_notice(file: Path, notice: Notice) -> None:
    """Store the notice, which pages and `/health` show."""
    replace_file(notice_path(file), json.dumps(asdict(notice), indent=1).encode())


def notice_path(file: Path) -> Path:
    """Return the path of the notice."""
    return file.with_name(f"{file.name}.damage.json")


def aside_folder(file: Path, *, now: datetime) -> Path:
    """Return the folder for what is found damaged at a time."""
    return file.with_name(f"{file.name}.damaged-{now:%Y%m%dT%H%M%S%fZ}")


def recover(file: Path, cause: str, *, now: datetime) -> Notice:
    """Set aside what is damaged, retain the rest, and store the notice.

    Args:
        file: the file of a store that nobody has open.
        cause: DuckDB's error.
        now: the time, which names the folder.
    """
    aside = aside_folder(file, now=now)
    aside.mkdir(mode=0o700)
    notice = Notice(at=f"{now:%Y-%m-%d %H:%M} UTC", aside=str(aside))
    earlier = read_notice(file)
    if earlier is not None:
        notice.lost += [*earlier.lost, f"More of it is in {earlier.aside}."]
    _log.error("%s Recovering what can be read", " ".join(cause.split()))
    if not _cut_log(file, cause, aside, notice):
        _copy_file(file, aside, notice)
    write_notice(file, notice)
    _log.error("Recovered %s. %s", file, notice.text)
    return notice


def _cut_log(file: Path, cause: str, aside: Path, notice: Notice) -> bool:
    """Retain the log up to its damage; return whether the file can be opened with that."""
    log, position = _log_of(file), _POSITION.search(cause)
    if not log.exists() or "WAL" not in cause:
        return False
    size, intact = log.stat().st_size, int(position[1]) if position else 0
    log.replace(aside / log.name)
    with (aside / log.name).open("rb") as damaged, log.open("wb") as whole:
        whole.write(damaged.read(intact))
    if not _opens(file):
        log.unlink(missing_ok=True)
        intact = 0
        if not _opens(file):
            return False
    notice.lost.append(
        f"Samples of the last commits are lost: {format_size(size - intact)} of the log of "
        f"{format_size(size)}."
    )
    notice.adopts_files = False
    return True


def _copy_file(file: Path, aside: Path, notice: Notice) -> None:
    """Copy the rows that can be read to a new file."""
    for path in (file, _log_of(file)):
        if path.exists():
            path.replace(aside / path.name)
    notice.adopts_files = True
    draft = file.with_name(f"{file.name}.new")
    for path in (draft, _log_of(draft)):
        path.unlink(missing_ok=True)
    try:
        with duckdb.connect(str(draft)) as connection:
            connection.execute(f"ATTACH '{_escaped(aside / file.name)}' AS damaged (READ_ONLY)")
            notice.lost += _copy_tables(connection)
    except duckdb.Error as error:
        _log.warning("nothing of %s can be read: %s", aside / file.name, error)
        draft.unlink(missing_ok=True)
        notice.lost.append("Samples that were not in files yet are lost: those of the last hours.")
        return
    draft.replace(file)


def _copy_tables(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Copy each table of the damaged database; yield what is lost."""
    tables = connection.execute(
        "SELECT table_name, sql FROM duckdb_tables() "
        "WHERE database_name = 'damaged' AND NOT internal ORDER BY table_name"
    ).fetchall()
    for name, statement in tables:
        connection.execute(statement.replace("damaged.", "", 1))
        source = f"damaged.{quoted(name)}"
        ((rows,),) = connection.execute(
            f"SELECT coalesce(max(rowid) + 1, 0) FROM {source}"  # noqa: S608 - own identifiers only
        ).fetchall()
        unread = sum(_copy_rows(connection, name, 0, rows))
        if unread:
            yield f"Up to {unread:,} of {rows:,} rows of the table {name} are lost."


def _copy_rows(
    connection: duckdb.DuckDBPyConnection, name: str, start: int, end: int
) -> Iterator[int]:
    """Copy a range of rows, of which halves are tried if it can't be read; yield what is lost."""
    if start >= end:
        return
    table = quoted(name)
    try:
        connection.execute(
            f"INSERT INTO {table} SELECT * FROM damaged.{table} "  # noqa: S608 - own identifiers only
            f"WHERE rowid >= {start} AND rowid < {end}"
        )
    except duckdb.Error:
        if end - start <= _LEAST_ROWS:
            yield end - start
            return
        middle = (start + end) // 2 // _LEAST_ROWS * _LEAST_ROWS or start + _LEAST_ROWS
        if middle <= start or middle >= end:
            middle = (start + end) // 2
        yield from _copy_rows(connection, name, start, middle)
        yield from _copy_rows(connection, name, middle, end)


def settle_files(cursor: duckdb.DuckDBPyConnection, files: Files, file: Path) -> str:
    """List the files of samples in a recovered manifest, or set them aside; return the notice.

    Without its last commits, the database may have the samples of files that it doesn't list. Files
    in a bucket stay where they are: its owner, which is another database then, refuses them.
    """
    notice = read_notice(file)
    if notice is None:
        return ""
    if notice.adopts_files is not None and isinstance(files, LocalFiles):
        create_manifest(cursor)
        unlisted = sorted(files.list_paths() - segment_paths(read_segments(cursor)))
        unused = adopt(cursor, files, unlisted) if notice.adopts_files else unlisted
        for path in unused:
            set_aside(files, path, Path(notice.aside))
            files.delete([path])
        if unused and notice.adopts_files:
            notice.lost.append(f"{len(unused)} files of samples can't be read.")
        notice.adopts_files = None
        write_notice(file, notice)
    return notice.text


def set_aside(files: LocalFiles, path: str, aside: Path) -> None:
    """Copy a file of samples to a folder for what is damaged."""
    target = aside / "samples" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(files.address(path), target)


def _opens(file: Path) -> bool:
    try:
        duckdb.connect(str(file)).close()
    except duckdb.Error:
        return False
    return True


def _log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.wal")


def _escaped(path: Path) -> str:
    return str(path).replace("'", "''")

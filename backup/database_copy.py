"""Consistent copies of the database while others write: of SQLite a file, of MySQL a dump."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import URL, Engine, inspect, make_url, text

from core.errors import ConfigurationError, UnavailableError

SQLITE_COPY, MYSQL_DUMP = "vedette.db", "vedette.sql"
# One row on each line, so that the rows of a dump can be counted, and always in the same order, so
# that two dumps have most of their parts in common.
_DUMP_OPTIONS = (
    "--single-transaction",
    "--quick",
    "--skip-lock-tables",
    "--skip-extended-insert",
    "--skip-dump-date",
    "--order-by-primary",
    "--hex-blob",
    "--no-tablespaces",
    "--default-character-set=utf8mb4",
)
_DUMP_PROGRAMS = ("mariadb-dump", "mysqldump")
_LOAD_PROGRAMS = ("mariadb", "mysql")
_DUMP_END = b"-- Dump completed"
_INSERT = b"INSERT INTO `"
_PAGES = -1  # all pages in one step: other connections go on writing to the log


def copy_database(database_url: str, folder: Path) -> Path:
    """Write a copy of the database into a folder; return its file.

    Raises:
        ConfigurationError: the program that dumps MySQL is missing.
        UnavailableError: the database can't be read.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        return _copy_sqlite(Path(str(url.database)), folder / SQLITE_COPY)
    dump = folder / MYSQL_DUMP
    with dump.open("wb") as file, _credentials(url) as options:
        program = _program(_DUMP_PROGRAMS)
        _run_client([program, *options, *_DUMP_OPTIONS, str(url.database)], stdout=file.fileno())
    return dump


def _copy_sqlite(source: Path, target: Path) -> Path:
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as database,
            closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy, pages=_PAGES)
    except sqlite3.Error as error:
        raise UnavailableError(f"The database {source} can't be copied: {error}.") from error
    return target


def count_rows(copy: Path) -> dict[str, int]:
    """Return the number of rows of each table of a copy.

    Raises:
        UnavailableError: the copy is damaged.
    """
    return _count_dumped(copy) if copy.name == MYSQL_DUMP else _count_sqlite(copy)


def _count_sqlite(copy: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=rw", uri=True)) as database:
        problems = [
            str(row[0]) for row in database.execute("PRAGMA integrity_check(5)") if row[0] != "ok"
        ]
        problems += [
            f"{table} refers to rows that are missing"
            for table, *_ in database.execute("PRAGMA foreign_key_check")
        ][:5]
        if problems:
            raise UnavailableError(f"The copy of the database is damaged: {'; '.join(problems)}.")
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            table: database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]  # noqa: S608 - ours
            for table in sorted(tables)
        }


def _count_dumped(dump: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    last = b""
    with dump.open("rb") as lines:
        for line in lines:
            last = line
            if line.startswith(b"CREATE TABLE `"):
                counts.setdefault(_table_of(line), 0)
            elif line.startswith(_INSERT):
                counts[_table_of(line)] += 1
    if not last.startswith(_DUMP_END):
        raise UnavailableError("The dump of the database is incomplete: its end is missing.")
    return counts


def _table_of(line: bytes) -> str:
    return line.split(b"`", 2)[1].decode()


def load_dump(dump: Path, engine: Engine) -> None:
    """Load a dump into an empty database; after an error, the database is empty again.

    Raises:
        ConfigurationError: the program that loads it is missing.
        UnavailableError: it could not be loaded.
    """
    url = engine.url
    try:
        with dump.open("rb") as file, _credentials(url) as options:
            program = _program(_LOAD_PROGRAMS)
            argv = [program, *options, "--default-character-set=utf8mb4", str(url.database)]
            _run_client(argv, stdin=file.fileno())
    except BaseException:
        drop_tables(engine)
        raise


def drop_tables(engine: Engine) -> None:
    """Drop all tables of a database of MySQL."""
    with engine.begin() as connection:
        connection.execute(text("SET FOREIGN_KEY_CHECKS = 0"))
        quote = engine.dialect.identifier_preparer.quote
        for table in inspect(connection).get_table_names():
            connection.execute(text(f"DROP TABLE {quote(table)}"))
        connection.execute(text("SET FOREIGN_KEY_CHECKS = 1"))


@contextmanager
def _credentials(url: URL) -> Iterator[Sequence[str]]:
    """Give the options of MySQL's programs, with the password in a file that only we can read."""
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as file:
        query = {name: value for name, value in url.query.items() if isinstance(value, str)}
        values = {
            "host": url.host,
            "port": url.port,
            "user": url.username,
            "password": url.password,
            "socket": query.get("unix_socket"),
            "ssl-ca": query.get("ssl_ca"),
            "ssl-cert": query.get("ssl_cert"),
            "ssl-key": query.get("ssl_key"),
        }
        file.write("[client]\n")
        for name, value in values.items():
            if value:
                escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
                file.write(f'{name}="{escaped}"\n')
        file.flush()
        yield [f"--defaults-extra-file={file.name}"]


def _program(names: Sequence[str]) -> str:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    problem = f"{names[0]} is not installed. Run: apt install mariadb-client"
    raise ConfigurationError([problem], source="The backup")


def _run_client(
    argv: Sequence[str], *, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL
) -> None:
    done = subprocess.run(  # noqa: S603 - our own words
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ},
        check=False,
    )
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise UnavailableError(f"{Path(argv[0]).name} failed: {reason}")

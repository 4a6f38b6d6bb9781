"""What can be wrong with a MySQL or MariaDB server for Vedette, with the remedy.

Connections set character set, SQL mode and storage engine by themselves (`core.db`); what is
checked here can only be changed on the server. SQLite has none of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine, text

CHARSET = "utf8mb4"
# The first with SKIP LOCKED and checked JSON columns that are still maintained.
OLDEST_VERSIONS = {"MariaDB": (10, 6), "MySQL": (8, 0)}
MAX_SKEW = timedelta(seconds=5)
LISTED_TABLES = 3
_SYSTEM_VARIABLES = "SELECT @@version, @@version_comment, @@log_bin, @@binlog_format"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and what to do about it; the server does not start with a fatal one."""

    cause: str
    remedy: str
    is_fatal: bool = True

    @property
    def text(self) -> str:
        """Cause and remedy in one line."""
        return f"{self.cause} {self.remedy}".rstrip()


def database_problems(engine: Engine, *, now: datetime) -> list[Problem]:
    """Return what is wrong with the database's server; `now` is compared with its clock.

    Raises:
        SQLAlchemyError: it does not answer.
    """
    if engine.dialect.name == "sqlite":
        return []
    with engine.connect() as connection:
        return [
            *_server_problems(connection),
            *_charset_problems(connection),
            *_clock_problems(connection, now=now),
        ]


def server_version(engine: Engine) -> str:
    """Return what the database is and its version, for people."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return f"SQLite {connection.scalar(text('SELECT sqlite_version()'))}"
        version = str(connection.scalar(text("SELECT @@version")))
        return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version}"


def set_charset(engine: Engine) -> bool:
    """Let an empty database have the character set that its tables need; return if it changed."""
    if engine.dialect.name == "sqlite":
        return False
    with engine.begin() as connection:
        if _charset_of(connection) == CHARSET or _tables_of_other_charsets(connection, CHARSET):
            return False
        if connection.scalar(text(f"SELECT COUNT(*) {_TABLES}")):
            return False
        name = connection.dialect.identifier_preparer.quote(_name_of(connection))
        connection.exec_driver_sql(f"ALTER DATABASE {name} CHARACTER SET {CHARSET}")
    return True


def rights_problems(engine: Engine) -> list[Problem]:
    """Return the problem if the user can't do what migrations do; makes and drops a table."""
    if engine.dialect.name == "sqlite":
        return []
    statements = (
        "CREATE TABLE vedette_check (id INT PRIMARY KEY, name VARCHAR(9))",
        "ALTER TABLE vedette_check ADD COLUMN size INT",
        "CREATE INDEX vedette_check_size ON vedette_check (size)",
        "INSERT INTO vedette_check VALUES (1, '\N{FIRE}', 1)",
        "UPDATE vedette_check SET size = 2",
        "DELETE FROM vedette_check",
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS vedette_check")
        try:
            for statement in statements:
                connection.exec_driver_sql(statement)
        finally:
            connection.exec_driver_sql("DROP TABLE IF EXISTS vedette_check")
    return []


_TABLES = "FROM information_schema.tables WHERE table_schema = DATABASE()"


def _server_problems(connection: Connection) -> Iterator[Problem]:
    row = connection.exec_driver_sql(_SYSTEM_VARIABLES).one()
    version, comment, has_binary_log, binary_log_format = map(str, row)
    kind = "MariaDB" if "mariadb" in f"{version} {comment}".lower() else "MySQL"
    match = re.match(r"(\d+)\.(\d+)", version)
    oldest = OLDEST_VERSIONS[kind]
    if match is None or (int(match[1]), int(match[2])) < oldest:
        yield Problem(
            f"{kind} {version} is too old.",
            f"Upgrade it to {kind} {oldest[0]}.{oldest[1]} or later.",
        )
    if has_binary_log == "1" and binary_log_format.upper() == "STATEMENT":
        yield Problem(
            "binlog_format is STATEMENT, which the isolation level READ COMMITTED can't use.",
            "Set binlog_format = MIXED or ROW in the server's configuration, and restart it.",
        )


def _charset_problems(connection: Connection) -> Iterator[Problem]:
    name, charset = _name_of(connection), _charset_of(connection)
    tables = _tables_of_other_charsets(connection, CHARSET)
    if tables:
        listed = ", ".join(tables[:LISTED_TABLES]) + (", ..." if tables[LISTED_TABLES:] else "")
        yield Problem(
            f"{len(tables)} tables of the database {name} have another character set than "
            f"{CHARSET}, which can't store all text: {listed}.",
            "See 'Converting a database to utf8mb4' in docs/runbooks.md.",
        )
    elif charset != CHARSET:
        yield Problem(
            f"The database {name} has the character set {charset}, which can't store all text.",
            f"Run: ALTER DATABASE `{name}` CHARACTER SET {CHARSET};",
        )


def _clock_problems(connection: Connection, *, now: datetime) -> Iterator[Problem]:
    read_at: datetime = connection.scalar(text("SELECT UTC_TIMESTAMP(6)")) or now
    skew = read_at.replace(tzinfo=UTC) - now
    if abs(skew) > MAX_SKEW:
        yield Problem(
            f"The database's clock is {abs(skew).total_seconds():.0f} s "
            f"{'ahead of' if skew > timedelta(0) else 'behind'} this host's.",
            "Synchronize the clocks of both hosts by NTP.",
            is_fatal=False,
        )


def _name_of(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT DATABASE()")))


def _charset_of(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT @@character_set_database")))


def _tables_of_other_charsets(connection: Connection, charset: str) -> list[str]:
    statement = text(
        f"SELECT table_name {_TABLES} AND table_collation NOT LIKE :pattern ORDER BY table_name"
    )
    return list(connection.scalars(statement, {"pattern": f"{charset}%"}))

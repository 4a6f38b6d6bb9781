"""The relational database: declarative base, column types, engine, transactions, guarded updates.

Services take a `Session` and own no transaction; the caller opens one with `transaction(...)`.
SQLite is the embedded default; MySQL and MariaDB (through PyMySQL) serve several hosts.

A guarded update changes a row only while it is still in the state that the caller read. Portal,
scheduler and agent API change the same rows concurrently. The expected state stands in the WHERE
clause of the statement, so that only the first writer changes the row; the others see `False`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, cast

from pymysql.err import MySQLError
from sqlalchemy import (
    JSON,
    Connection,
    CursorResult,
    DateTime,
    Delete,
    Dialect,
    Engine,
    MetaData,
    String,
    TypeDecorator,
    Update,
    create_engine,
    event,
    inspect,
    make_url,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from core.changes import BUS, ChangeBus
from core.errors import DatabaseUnavailableError, DeadlockError
from core.ids import ID_LENGTH, new_id
from core.turns import BUSY, install_giving_way, install_write_turns

logger = logging.getLogger(__name__)

SessionFactory = sessionmaker[Session]
T = TypeVar("T")

# Databases bound the parameters of a statement.
ROWS_PER_STATEMENT = 500
# Of SQLite, such as "no such table": not a matter of time.
_WRONG_STATEMENT = "SQLITE_ERROR"
# Of MySQL.
_DEADLOCK = 1213
_TRUNCATION_MILLISECONDS = 1_000
# Of MySQL. Its statements take far less, and every request waits as long if its host is gone.
CONNECT_SECONDS = 5
ANSWER_SECONDS = 30.0
# Connections stay open: by default, all above five would be opened and prepared for each use. The
# one used last comes first, so that a quiet process uses few.
# Of each connection to MySQL, whatever the server's defaults are: ANSI_QUOTES would turn text into
# names, and without the strict mode values are cut silently. MyISAM has no transactions.
_MYSQL: dict[str, Any] = {
    "charset": "utf8mb4",
    "init_command": "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION', default_storage_engine = InnoDB",
}
_POOL: dict[str, Any] = {"pool_size": 15, "max_overflow": 0, "pool_use_lifo": True}

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class _LostConnections(logging.Filter):
    """Leaves out that a connection of the pool was lost with its server, which SQLAlchemy logs.

    Whoever used it reports the outage; the pool's records have a traceback each.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        return not (record.exc_info and isinstance(record.exc_info[1], MySQLError))


# A logger's filters are for its own records, not for those of loggers below it.
logging.getLogger("sqlalchemy.pool.impl.QueuePool").addFilter(_LostConnections())


class UTCDateTime(TypeDecorator[datetime]):
    """An aware UTC instant with microseconds, stored without a zone on every database."""

    impl = DateTime
    cache_ok = True
    python_type = datetime

    def load_dialect_impl(self, dialect: Dialect) -> Any:  # noqa: ANN401 - SQLAlchemy's own type
        """Store microseconds on MySQL, whose DATETIME drops them by default."""
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Reject naive datetimes."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; pass an aware UTC datetime")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return an aware instant."""
        return None if value is None else value.replace(tzinfo=UTC)


class Base(DeclarativeBase):
    """The declarative base of every table; constraint names are fixed for migrations."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        datetime: UTCDateTime(),
        dict[str, Any]: JSON(),
        dict[str, str]: JSON(),
        list[str]: JSON(),
        list[dict[str, Any]]: JSON(),
    }


def id_column() -> Mapped[str]:
    """Return a primary key column filled with a new UUIDv7."""
    return mapped_column(String(ID_LENGTH), primary_key=True, default=new_id)


def create_database_engine(
    database_url: str, *, answer_seconds: float | None = ANSWER_SECONDS
) -> Engine:
    """Return an engine with Vedette's settings for this kind of database.

    SQLite: WAL, foreign keys, 10 s timeout for the single writer, and zeros in place of what was
    deleted (the default of some builds only). MySQL: connections are checked
    and recycled, don't depend on the server's defaults, and use READ COMMITTED so that guarded
    updates see fresh rows.

    Args:
        database_url: in SQLAlchemy's form.
        answer_seconds: how long MySQL may take for an answer, for example when its host was
            disconnected; None for no limit. The URL's own timeouts take precedence.
    """
    if database_url.startswith("sqlite"):
        engine = create_engine(database_url, connect_args={"timeout": 10}, **_POOL)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "savepoint", _begin_sqlite)
        install_giving_way(engine)
        install_write_turns(engine)
        return engine
    timeouts = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": answer_seconds,
        "write_timeout": answer_seconds,
    }
    own = make_url(database_url).query
    engine = create_engine(
        database_url,
        connect_args=_MYSQL | {name: value for name, value in timeouts.items() if name not in own},
        pool_pre_ping=True,
        pool_recycle=1800,
        isolation_level="READ COMMITTED",
        **_POOL,
    )
    install_giving_way(engine)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - a DBAPI connection
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.close()


def _begin_sqlite(connection: Connection, _name: str) -> None:
    # The driver does not begin a transaction before a savepoint, so that its release would commit.
    # A deferred transaction would fail at its first write, without waiting, if another were
    # written after its first read.
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def begin_writing(session: Session) -> None:
    """Wait until nobody else writes to SQLite, before anything is read: what follows is not short.

    Bulk work of many threads then computes one part at a time.
    """
    if session.get_bind().dialect.name == "sqlite":
        _begin_sqlite(session.connection(), "")


def create_session_factory(engine: Engine) -> SessionFactory:
    """Return a session factory; objects stay readable after commit.

    All of its sessions tell one bus of changes, see `changes_of`.
    """
    return sessionmaker(engine, expire_on_commit=False, info={BUS: ChangeBus()})


def changes_of(sessions: SessionFactory) -> ChangeBus:
    """Return the bus that tells of what the sessions commit."""
    bus: ChangeBus = sessions.kw["info"][BUS]
    return bus


@contextmanager
def transaction(sessions: SessionFactory) -> Iterator[Session]:
    """Open a session and a transaction: commit at the end, roll back on any error.

    Raises:
        DatabaseUnavailableError: another transaction is in the way, or the database is unreachable.
    """
    try:
        with sessions.begin() as session:
            yield session
    except (OperationalError, InterfaceError, InternalError, PoolTimeoutError) as error:
        reason = getattr(error, "orig", None) or error
        if getattr(reason, "sqlite_errorname", "") == _WRONG_STATEMENT:
            raise
        if _DEADLOCK in reason.args:
            logger.warning("a transaction was rolled back: %s", reason)
            raise DeadlockError(BUSY) from error
        logger.warning("the database is busy or unavailable: %s", reason)
        raise DatabaseUnavailableError(BUSY) from error


def chunked(rows: Iterable[T], size: int = ROWS_PER_STATEMENT) -> Iterator[list[T]]:
    """Yield parts of at most `size` rows, in their order: of no rows, none."""
    all_rows = list(rows)
    return (all_rows[start : start + size] for start in range(0, len(all_rows), size))


def changed_one(
    session: Session,
    statement: Update | Delete,
    parameters: Mapping[str, object] | None = None,
    *,
    synchronize_session: Literal["auto", False] = "auto",
) -> bool:
    """Execute a guarded UPDATE or DELETE of one row; return whether the row matched."""
    row_count = changed_rows(
        session, statement, parameters, synchronize_session=synchronize_session
    )
    return row_count == 1


def changed_rows(
    session: Session,
    statement: Update | Delete,
    parameters: Mapping[str, object] | None = None,
    *,
    synchronize_session: Literal["auto", False] = "auto",
) -> int:
    """Execute an UPDATE or DELETE; return the number of rows that matched its WHERE clause.

    Args:
        session: where the statement runs; the caller owns the transaction.
        statement: the guarded statement.
        parameters: of its `bindparam`s.
        synchronize_session: `False` leaves objects that the session has loaded as they are.
    """
    result = session.execute(
        statement, parameters, execution_options={"synchronize_session": synchronize_session}
    )
    return cast("CursorResult[Any]", result).rowcount


def insert_missing(session: Session, model: type[Base], *rows: dict[str, Any]) -> None:
    """Insert rows unless others have their keys, whoever inserts the same ones meanwhile.

    A plain INSERT that fails keeps a shared lock on MySQL, which can cause deadlocks.
    """
    if session.get_bind().dialect.name == "sqlite":
        session.execute(sqlite.insert(model).values(rows).on_conflict_do_nothing())
        return
    key = inspect(model).primary_key[0]
    made = mysql.insert(model).values(rows)
    session.execute(made.on_duplicate_key_update({key.name: key}))


def erase_on_commit(session: Session) -> None:
    """Remove what the session overwrites from SQLite's files once it has committed.

    `secure_delete` overwrites it in the database, but its write-ahead log has earlier pages until
    it is truncated. That waits for running reads, as do other writes meanwhile, so not for long.
    """
    engine = session.get_bind().engine

    def truncate_log(_session: Session) -> None:
        with engine.connect() as connection:
            connection.detach()  # with its timeout
            connection.exec_driver_sql(f"PRAGMA busy_timeout={_TRUNCATION_MILLISECONDS}")
            if connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar():
                logger.warning(
                    "%s-wal was in use and may have an erased value until it is overwritten or the "
                    "server stops",
                    engine.url.database,
                )

    if engine.dialect.name == "sqlite":
        event.listen(session, "after_commit", truncate_log, once=True)

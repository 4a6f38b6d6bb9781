"""Progress of a migration on MySQL and MariaDB, so that one that was killed can continue.

They commit at each statement that changes the schema, so a migration that is killed between two
statements is half done. Here, the table `migration_progress` has the statements of the current
revision that were begun. Each is noted in its own transaction:

- What inserts, updates or deletes rows is committed together with its note, or not at all.
- What changes the schema commits the note first and then itself. After a kill it may or may not be
  done; it is executed again, and an error that says that it was done already is no error. A note
  of what the database refused is deleted.

The next start runs the same script, and leaves out what is noted. Statements are compared by their
text, because SQLAlchemy creates the indexes of a table in any order. The notes are deleted in the
transaction that sets the revision.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymysql.err import MySQLError
from sqlalchemy import Connection, ExceptionContext, event

PROGRESS_TABLE = "migration_progress"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} "
    "(position INTEGER PRIMARY KEY, statement MEDIUMTEXT NOT NULL)"
)
_READ = f"SELECT statement FROM {PROGRESS_TABLE} ORDER BY position"  # noqa: S608 - a constant
_NOTE = f"INSERT INTO {PROGRESS_TABLE} VALUES (%s, %s)"  # noqa: S608
_DELETE = f"DELETE FROM {PROGRESS_TABLE}"  # noqa: S608
_SCHEMA = ("CREATE", "ALTER", "DROP", "RENAME")
_ROWS = ("INSERT", "UPDATE", "DELETE", "REPLACE")
# Statements of Alembic and of this module.
_OWN_TABLES = (PROGRESS_TABLE, "alembic_version")
_NOTHING = "DO 0"
# What MySQL and MariaDB answer to a change of the schema that was made already: a table, column,
# key or constraint exists, or what is to be dropped or renamed does not.
_DONE_ALREADY = frozenset({1050, 1051, 1054, 1060, 1061, 1068, 1091, 1146, 1176, 1826})
# MariaDB's for a foreign key, with the code of other errors.
_CONSTRAINT_EXISTS = "errno: 121 "


class MigrationProgress:
    """Notes each statement of the migrations on a connection, and leaves out what is done."""

    def __init__(self, connection: Connection) -> None:
        connection.exec_driver_sql(_CREATE)
        noted = list(connection.exec_driver_sql(_READ).scalars())
        self._connection = connection
        self._position = len(noted)
        self._noted = Counter(noted)
        # Whether this one was completed is not certain.
        self._last_noted = noted[-1] if noted else ""

    def before_statement(
        self,
        _connection: Any,  # noqa: ANN401 - these are the event's
        cursor: Any,  # noqa: ANN401
        statement: str,
        parameters: Any,  # noqa: ANN401
        _context: Any,  # noqa: ANN401
        executemany: bool,  # noqa: FBT001
    ) -> tuple[str, Any]:
        """Note a statement; return it, or one that does nothing in place of one that is done."""
        is_of_schema = statement.lstrip().startswith(_SCHEMA)
        is_change = is_of_schema or statement.lstrip().startswith(_ROWS)
        if not is_change or any(name in statement for name in _OWN_TABLES):
            return statement, parameters
        if not self._noted[statement]:
            cursor.execute(_NOTE, (self._position, statement))
            self._position += 1
            return statement, parameters
        self._noted[statement] -= 1
        is_last = statement == self._last_noted and not self._noted[statement]
        if is_last and is_of_schema:
            _execute_again(cursor, statement, parameters)
        return _NOTHING, [()] if executemany else ()

    def after_error(self, context: ExceptionContext) -> None:
        """Delete the note of a statement that the database refused: it isn't done."""
        is_of_schema = (context.statement or "").lstrip().startswith(_SCHEMA)
        if is_of_schema and context.connection is self._connection and not context.is_disconnect:
            self._position -= 1
            driver: Any = self._connection.connection.dbapi_connection
            driver.cursor().execute(f"{_DELETE} WHERE position = %s", (self._position,))
            driver.commit()

    def finish_revision(self, **_details: object) -> None:
        """Begin the next revision: Alembic has set this one, in the same transaction."""
        self._position = 0
        self._noted.clear()
        self._connection.exec_driver_sql(_DELETE)


@contextmanager
def noted_progress(connection: Connection) -> Iterator[MigrationProgress]:
    """Note the statements of migrations that run on the connection in the block."""
    progress = MigrationProgress(connection)
    event.listen(connection, "before_cursor_execute", progress.before_statement, retval=True)
    event.listen(connection.engine, "handle_error", progress.after_error)
    try:
        yield progress
    finally:
        event.remove(connection.engine, "handle_error", progress.after_error)
        event.remove(connection, "before_cursor_execute", progress.before_statement)
    connection.exec_driver_sql(f"DROP TABLE {PROGRESS_TABLE}")


def _execute_again(cursor: Any, statement: str, parameters: Any) -> None:  # noqa: ANN401 - a DBAPI's
    try:
        cursor.execute(statement, parameters)
    except MySQLError as error:
        code, message = error.args[:2]
        if code not in _DONE_ALREADY and _CONSTRAINT_EXISTS not in message:
            raise

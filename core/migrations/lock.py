"""The lock of migrations on MySQL and MariaDB: one process at a time, of all that are connected.

The server releases it when its connection ends, so that a process that was killed leaves none.
"""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from core.errors import ConfigurationError

log = logging.getLogger(__name__)

# How long a process waits for another one that migrates: large tables take minutes.
LOCK_SECONDS = 1_800


@contextmanager
def migration_lock(connection: Connection) -> Iterator[None]:
    """Hold the lock of this database for the length of the block; wait until it is free.

    Raises:
        ConfigurationError: another process holds it for longer than `LOCK_SECONDS`.
    """
    # The server has one name space for all of its databases, and names of at most 64 characters.
    database = str(connection.engine.url.database)
    name = f"vedette-{hashlib.sha256(database.encode()).hexdigest()[:32]}"
    if not _is_locked(connection, name, seconds=0):
        log.info("another process migrates the database; waiting for it")
        if not _is_locked(connection, name, seconds=LOCK_SECONDS):
            problem = (
                f"another process has been migrating the database for {LOCK_SECONDS // 60} "
                "minutes. SHOW PROCESSLIST shows what it does; start again when it has ended"
            )
            raise ConfigurationError([problem], source="Database")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql("DO RELEASE_LOCK(%s)", (name,))
            connection.commit()


def _is_locked(connection: Connection, name: str, *, seconds: int) -> bool:
    """Try to get the lock; the transaction that reads it ends, so that later reads are fresh."""
    is_locked = connection.exec_driver_sql("SELECT GET_LOCK(%s, %s)", (name, seconds)).scalar() == 1
    connection.commit()
    return is_locked

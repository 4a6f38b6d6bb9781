"""The database of these tests is MariaDB: what they share with others, on its tables."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from core.db import Base, create_database_engine
from tests.fixtures.mariadb import MariaDB


@pytest.fixture(scope="session")
def tables(mariadb: MariaDB) -> Iterator[Engine]:
    """A database with every table: to make them takes longer than most tests."""
    engine = create_database_engine(mariadb.new_database())
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(tables: Engine) -> Engine:
    """The tables, emptied: `sessions` and `cast` build upon it, as they do on SQLite."""
    with tables.begin() as connection:
        connection.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 0")
        for table in Base.metadata.sorted_tables:
            connection.execute(table.delete())
        connection.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 1")
    return tables

"""The database of these tests is MariaDB: what they share with others, on its tables."""

import pytest
from sqlalchemy import Engine

from tests.fixtures.mariadb import without_rows


@pytest.fixture
def engine(mariadb_tables: Engine) -> Engine:
    """The tables, emptied: `sessions` and `cast` build upon it, as they do on SQLite."""
    return without_rows(mariadb_tables)

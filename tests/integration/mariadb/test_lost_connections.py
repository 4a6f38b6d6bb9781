"""A connection that was lost with its server: whoever used it reports that, in one line."""

import logging

import pytest
from sqlalchemy import text

from core.db import create_database_engine
from tests.fixtures.mariadb import MariaDB

pytestmark = pytest.mark.needs_mariadb


def test_the_pool_logs_no_traceback_of_a_connection_that_was_lost(
    mariadb: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_database_engine(mariadb.new_database())
    with engine.connect() as other, caplog.at_level(logging.DEBUG, logger="sqlalchemy.pool"):
        lost = engine.raw_connection()
        cursor = lost.cursor()
        cursor.execute("SELECT CONNECTION_ID()")
        row = cursor.fetchone()
        assert row is not None
        other.execute(text(f"KILL {row[0]}"))
        lost.close()
    engine.dispose()
    assert [record for record in caplog.records if record.exc_info] == []

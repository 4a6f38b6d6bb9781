"""An empty store; two others and a file of progress, for the tests of moving."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures.memory_stores import memory_store
from timeseries.duckdb.store import DuckDBStore
from timeseries.migration.state import StateFile


@pytest.fixture
def store() -> Iterator[DuckDBStore]:
    with closing(memory_store()) as store:
        yield store


@pytest.fixture
def source() -> Iterator[DuckDBStore]:
    with closing(memory_store()) as store:
        yield store


@pytest.fixture
def destination() -> Iterator[DuckDBStore]:
    with closing(memory_store()) as store:
        yield store


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "migrations" / "one.json", key="one to another")

"""Two empty stores and a file of progress, for the tests of moving."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from timeseries.duckdb.store import DuckDBStore
from timeseries.migration.state import StateFile


@pytest.fixture
def source() -> Iterator[DuckDBStore]:
    store = DuckDBStore(":memory:")
    yield store
    store.close()


@pytest.fixture
def destination() -> Iterator[DuckDBStore]:
    store = DuckDBStore(":memory:")
    yield store
    store.close()


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "migrations" / "one.json", key="one to another")

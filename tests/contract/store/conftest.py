"""Every backend that must pass the store contract; another joins by a name and an opener here."""

from collections.abc import Callable, Iterator

import pytest

from timeseries.open_store import open_store
from timeseries.store import Store


def _duckdb() -> Store:
    return open_store("duckdb://")


BACKENDS: dict[str, Callable[[], Store]] = {"duckdb": _duckdb}


@pytest.fixture(params=sorted(BACKENDS))
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store of each backend in turn."""
    opened = BACKENDS[request.param]()
    yield opened
    opened.close()

"""A damaged sample store is reported on every page, with its details for operators."""

from collections.abc import Iterator

import pytest

from tests.unit.portal.conftest import Browser
from timeseries.duckdb.store import MEMORY, DuckDBStore


@pytest.fixture
def store() -> Iterator[DuckDBStore]:
    """A store of which something is lost."""
    store = DuckDBStore(MEMORY)
    store.notice = "Samples of the last commits are lost. What was damaged is in /srv/x."
    yield store
    store.close()


@pytest.mark.parametrize("path", ["/jobs", "/dashboards/", "/settings"])
def test_users_see_that_samples_may_be_missing(alice: Browser, path: str) -> None:
    page = alice.get(path).text

    assert "Some samples may be missing" in page
    assert "/srv/x" not in page


def test_operators_see_what_is_lost_and_what_to_do(olivia: Browser) -> None:
    page = olivia.get("/console").text

    assert "/srv/x" in page
    assert "vedette store repair" in page

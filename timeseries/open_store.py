"""From a URL to a store: the one place that knows every backend."""

from collections.abc import Callable
from pathlib import Path

from core.errors import ConfigurationError
from timeseries.duckdb_store import MEMORY, DuckDBStore
from timeseries.store import Store


def open_store(url: str) -> Store:
    """Open the store that a URL names.

    Args:
        url: `duckdb:///relative/path`, `duckdb:////absolute/path` (as in SQLAlchemy's URLs), or
            `duckdb://` for a store in memory.

    Raises:
        ConfigurationError: the URL names no store that is known.
        StoreUnavailableError: the store can't be opened.
    """
    scheme, separator, rest = url.partition("://")
    opener = _OPENERS.get(scheme)
    if opener is None or not separator:
        # The rest is left out of the message: it may hold a password.
        given = f"starts with {scheme}://" if separator else "has no scheme"
        raise ConfigurationError(
            [f"the time series URL {given}; known are {', '.join(_FORMS)}"], source="TIMESERIES_URL"
        )
    return opener(rest)


def _open_duckdb(rest: str) -> Store:
    host, _, path = rest.partition("/")
    if host:
        raise ConfigurationError(
            [f"duckdb://{rest} names a host; write duckdb:///{rest} for a file"],
            source="TIMESERIES_URL",
        )
    return DuckDBStore(MEMORY if path in {"", MEMORY} else Path(path))


_OPENERS: dict[str, Callable[[str], Store]] = {"duckdb": _open_duckdb}
_FORMS = ("duckdb:///relative/path", "duckdb:////absolute/path", "duckdb:// (in memory)")

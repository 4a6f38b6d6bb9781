"""From a URL to a store: the one place that knows every backend.

A backend's module is imported when a URL asks for it: a server with InfluxDB never loads DuckDB,
and a tool that reads one never needs the other's client.
"""

import importlib

from core.errors import ConfigurationError
from timeseries.store import Store, StoreUnavailableError
from timeseries.store_url import EMBEDDED_SCHEME, MEMORY_PATH, SOURCE, StoreURL, parse_store_url

# Scheme -> (module, class); all but the embedded one are opened by `from_url(url)`.
_BACKENDS = {
    "duckdb": ("timeseries.duckdb.store", "DuckDBStore"),
    "influxdb": ("timeseries.influxdb.store", "InfluxDBStore"),
    "influxdbs": ("timeseries.influxdb.store", "InfluxDBStore"),
    "victoriametrics": ("timeseries.victoriametrics.store", "VictoriaMetricsStore"),
    "victoriametricss": ("timeseries.victoriametrics.store", "VictoriaMetricsStore"),
}


def open_store(url: str, *, must_exist: bool = False, source: str = SOURCE) -> Store:
    """Open the store that a URL names.

    Args:
        url: `duckdb:///relative/path`, `duckdb:////absolute/path` (as in SQLAlchemy's URLs),
            `duckdb://` for a store in memory, `influxdb://[user:password@]host:port/database`,
            `influxdb://host:port/?org=&bucket=&token=`, `victoriametrics://host:port`; the last
            two with an `s` after the name for TLS.
        must_exist: refuse a DuckDB file that is not there instead of making it.
        source: the setting or option that the URL comes from, for the message of a fault.

    Raises:
        ConfigurationError: the URL names no store that is known, or has a fault; the message
            holds neither password nor token.
        StoreUnavailableError: the store can't be opened, or does not exist and must.
    """
    parsed = parse_store_url(url, source=source)
    if must_exist and parsed.file is not None and not parsed.file.is_file():
        raise StoreUnavailableError(
            f"There is no time series file {parsed.file}. Check the path in {source}."
        )
    module, name = _BACKENDS[parsed.scheme]
    try:
        backend = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise _missing(parsed, error, source) from error
    store: Store
    if parsed.scheme == EMBEDDED_SCHEME:
        store = backend(parsed.file or MEMORY_PATH)
    else:
        store = backend.from_url(url)
    return store


def _missing(parsed: StoreURL, error: ModuleNotFoundError, source: str) -> ConfigurationError:
    fault = (
        f"{parsed.scheme}:// needs {error.name}, which is not installed; "
        "install the server's packages with: pip install 'vedette[server]'"
    )
    return ConfigurationError([fault], source=source)

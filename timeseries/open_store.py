"""Opening a store by its URL, the only module that knows every backend.

A backend is imported when a URL needs it: a server with InfluxDB never loads DuckDB.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from core.clock import utc_now
from core.errors import ConfigurationError
from timeseries.declared import DECLARED
from timeseries.store import DamagedStoreError, Detail, Store, StoreUnavailableError
from timeseries.store_url import (
    EMBEDDED_SCHEME,
    MEMORY_PATH,
    SOURCE,
    StoreURL,
    files_folder,
    parse_store_url,
)

_PERCENTILES: Mapping[str, frozenset[str]] = {
    "gpu": frozenset({"power_watts"}),
}
_MEANS: Mapping[str, frozenset[str]] = {
    "cpu": frozenset({"usage_percent"}),
    "disk": frozenset({"used_percent"}),
    "diskio": frozenset({"read_bytes_per_second", "written_bytes_per_second"}),
    "gpu": frozenset({"memory_used_percent", "temperature_celsius", "utilization_percent"}),
    "memory": frozenset({"used_percent"}),
    "network": frozenset({"received_bytes_per_second", "sent_bytes_per_second"}),
}
# Scheme -> (module, class); all but the embedded one have `from_url(url)`.
_BACKENDS = {
    "duckdb": ("timeseries.duckdb.store", "DuckDBStore"),
    "influxdb": ("timeseries.influxdb.store", "InfluxDBStore"),
    "influxdbs": ("timeseries.influxdb.store", "InfluxDBStore"),
    "victoriametrics": ("timeseries.victoriametrics.store", "VictoriaMetricsStore"),
    "victoriametricss": ("timeseries.victoriametrics.store", "VictoriaMetricsStore"),
}
DEFAULT_CACHE_MIB = 1024
_MAX_RECOVERIES = 2


def open_store(
    url: str,
    *,
    must_exist: bool = False,
    source: str = SOURCE,
    memory_mib: int = 0,
    threads: int = 0,
    cache_mib: int = DEFAULT_CACHE_MIB,
    recovers: bool = False,
    recent_folder: Path | None = None,
) -> Store:
    """Open the store of a URL.

    Args:
        url: one of `FORMS`.
        must_exist: refuse a missing DuckDB file instead of creating it.
        source: the setting or option that has the URL, for error messages.
        memory_mib: what the embedded store may use of the machine's memory; 0 is its share.
        threads: how many threads the embedded store may use; 0 is its share.
        cache_mib: how much disk it may use to cache files that are in a bucket.
        recovers: whether what is damaged of an embedded store is set aside, and the rest opened.
        recent_folder: where samples are that a server may lose when it is killed; VictoriaMetrics.

    Raises:
        ConfigurationError: the URL is invalid; the message has no secrets.
        StoreUnavailableError: the store can't be opened, or must exist and does not.
    """
    parsed = parse_store_url(url, source=source)
    if must_exist and parsed.file is not None and not parsed.file.is_file():
        raise StoreUnavailableError(
            f"The time series file {parsed.file} does not exist. Check the path in {source}."
        )
    module, name = _BACKENDS[parsed.scheme]
    try:
        backend = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        message = (
            f"{parsed.scheme}:// needs {error.name}, which is not installed. "
            "Run: pip install 'vedette[server]'"
        )
        raise ConfigurationError([message], source=source) from error
    store: Store
    if parsed.scheme == EMBEDDED_SCHEME:
        limits = importlib.import_module("timeseries.duckdb.hot.database").Limits(
            memory_mib, threads
        )
        opening = partial(
            backend,
            parsed.file or MEMORY_PATH,
            limits=limits,
            files=_files(parsed, cache_mib),
            # A sender can invent any number of fields: aggregating them would take the machine.
            detail_of=detail_of,
        )
        store = _recovered(opening, parsed.file) if recovers and parsed.file else opening()
    elif recent_folder is not None and module.startswith("timeseries.victoriametrics"):
        store = backend.from_url(url, recent_folder=recent_folder)
    else:
        store = backend.from_url(url)
    return store


def _recovered(opening: Callable[[], Store], file: Path) -> Store:
    """Open an embedded store; recover its log first if that is damaged, and then its file."""
    for _ in range(_MAX_RECOVERIES):
        try:
            return opening()
        except DamagedStoreError as error:
            recovery = importlib.import_module("timeseries.duckdb.recovery")
            recovery.recover(file, error.message, now=utc_now())
    return opening()


def _files(url: StoreURL, cache_mib: int) -> object:
    """Return the place of the files of an embedded store; None is its default."""
    if url.file is None or not (url.files or url.is_open):
        return None
    folder = files_folder(url.file)
    if not url.files.startswith("s3://"):
        local = importlib.import_module("timeseries.duckdb.files.files").LocalFiles
        return local(Path(url.files) if url.files else folder, is_open=url.is_open)
    try:
        return importlib.import_module("timeseries.duckdb.files.s3").S3Files(
            url.files, folder=folder, cache_bytes=cache_mib * 2**20, is_open=url.is_open
        )
    except OSError as error:
        raise StoreUnavailableError(
            f"Can't use the folder {folder} for uploads and the cache: {error}. Set another path "
            "in TIMESERIES_URL, or make the folder writable."
        ) from error


def detail_of(measurement: str, field: str) -> Detail:
    """Return how much of a field is rolled up, whether or not a rule reads it.

    What pages chart for all appliances at once has means by five minutes; samples of one appliance
    answer as fast as roll-ups.
    """
    if field in _PERCENTILES.get(measurement, ()):
        return Detail.PERCENTILES
    if field in _MEANS.get(measurement, ()):
        return Detail.MEANS
    declared = DECLARED.get(measurement)
    return Detail.HOURS if declared and field in declared.fields else Detail.NONE

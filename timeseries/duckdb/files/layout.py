"""The paths of the files of segments, in the compact layout and in the open one.

    compact  <tenant>/<measurement>/<day>/<id>.<resolution>.parquet
    open     tenant=<tenant>/measurement=<measurement>/resolution=<resolution>/day=<day>/
             <id>.<resolution>.parquet

Other programs read the open layout: its folders are partitions as Hive has them, each column has
one type in all files, and `_files/files.jsonl` lists the files that count. docs/open-files.md
describes it; whoever changes it changes `VERSION`.
"""

import hashlib
import re
from datetime import date
from functools import lru_cache

from timeseries.duckdb.schema import encoded
from timeseries.store import DAY_NS, Resolution

VERSION = 1
"""The version of the open layout."""
GLOBS = ("*/*/*/*.parquet", "*/*/*/*/*.parquet")
"""The files of both layouts."""
DEPTHS = frozenset(pattern.count("/") + 1 for pattern in GLOBS)
FILES_LIST, COLUMNS_LIST = "_files/files.jsonl", "_columns/columns.jsonl"
"""Beside the files of a tenant and measurement; readers of Hive's tables skip such folders."""
_EPOCH = date(1970, 1, 1).toordinal()
_MAX_NAME = 200
_UNSAFE = re.compile(rb"[^a-z0-9_-]")


def segment_path(
    name: str,
    resolution: Resolution,
    *,
    tenant: str,
    measurement: str,
    oldest_ns: int,
    is_open: bool,
) -> str:
    """Return the path of a file, relative to the folder or prefix of the store."""
    day, file = day_name(oldest_ns // DAY_NS), f"{name}.{resolution}.parquet"
    if not is_open:
        folders = map(folder_name, (tenant, measurement))
        return "/".join([*folders, day, file])
    folder = partition(tenant, measurement)
    return f"{folder}/resolution={resolution}/day={day}/{file}"


def partition(tenant: str, measurement: str) -> str:
    """Return the folder of a tenant's measurement in the open layout."""
    return f"{tenant_folder(tenant)}/measurement={_partition_value(measurement)}"


def tenant_folder(tenant: str) -> str:
    """Return the folder of a tenant in the open layout."""
    return f"tenant={_partition_value(tenant)}"


def folder_name(name: str) -> str:
    """Return the folder of a tenant or measurement: a long name is cut and gets a checksum."""
    return _cut(encoded(name) or "%", name)


def is_open_path(path: str) -> bool:
    """Return whether a path is one of the open layout."""
    return path.startswith("tenant=")


def partition_of(path: str) -> str:
    """Return the folder of the tenant's measurement of a path in the open layout."""
    return "/".join(path.split("/")[:2])


def day_name(day: int) -> str:
    """Return a day as `2026-11-22`; days that the calendar of Python lacks by their number."""
    try:
        return str(date.fromordinal(_EPOCH + day))
    except (ValueError, OverflowError):
        return f"day{day}"


@lru_cache(maxsize=4_096)
def _partition_value(name: str) -> str:
    """Return a value as in the partitions of Hive; readers decode `%` and two hex digits."""
    text = _UNSAFE.sub(lambda byte: b"%%%02x" % byte[0][0], name.encode()).decode()
    return _cut(text or "%", name)


def _cut(text: str, name: str) -> str:
    if len(text) <= _MAX_NAME:
        return text
    return f"{text[: _MAX_NAME - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

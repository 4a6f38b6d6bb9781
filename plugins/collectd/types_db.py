"""Types: collectd's data sets, from files in the format of types.db(5).

A *type* such as `if_octets` is a list of *data sources*: `rx` and `tx`, each with a kind and
bounds.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from plugins.base import PluginError

log = logging.getLogger(__name__)

SYSTEM_TYPES_DB = Path("/usr/share/collectd/types.db")
_SEPARATORS = re.compile(r"[\s,]+")
_SOURCE_PARTS = 4


class SourceKind(StrEnum):
    """Kind of a data source; values as in collectd's Python API."""

    GAUGE = "gauge"
    COUNTER = "counter"
    DERIVE = "derive"
    ABSOLUTE = "absolute"


@dataclass(frozen=True, slots=True)
class DataSource:
    """One number of a type; None means unbounded."""

    name: str
    kind: SourceKind
    minimum: float | None
    maximum: float | None


DataSet = tuple[DataSource, ...]
Types = Mapping[str, DataSet]


def load_types(files: Iterable[Path], *, system: Path = SYSTEM_TYPES_DB) -> Types:
    """Return the common types, those of an installed collectd, and those of `files`.

    A later definition replaces an earlier one. A bad line is logged and skipped, as in collectd.

    Raises:
        PluginError: one of `files` can't be read.
    """
    types, _ = parse_types(COMMON_TYPES)
    for path in [*([system] if system.is_file() else []), *files]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise PluginError(f"types_db: {path} can't be read: {error.strerror}") from error
        file_types, faults = parse_types(text)
        types |= file_types
        for fault in faults:
            log.warning("%s, %s", path, fault)
    return types


def parse_types(text: str) -> tuple[dict[str, DataSet], list[str]]:
    """Return the data sources of each type name, and an error for each bad line.

    Source: types.db(5); like collectd, data sources are separated by spaces or commas.
    """
    types: dict[str, DataSet] = {}
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, *sources = _SEPARATORS.split(line.strip().rstrip(","))
        if not name or name.startswith("#"):
            continue
        try:
            types[name] = _data_set(sources)
        except ValueError as error:
            faults.append(f"line {number}: type {name!r}: {error}")
    return types, faults


def _data_set(texts: list[str]) -> DataSet:
    if not texts:
        raise ValueError("no data source; expected NAME:KIND:MIN:MAX")
    data_set = tuple(_data_source(text) for text in texts)
    if len({source.name for source in data_set}) < len(data_set):
        raise ValueError("two data sources have the same name")
    return data_set


def _data_source(text: str) -> DataSource:
    parts = text.split(":")
    if len(parts) != _SOURCE_PARTS or not parts[0]:
        raise ValueError(f"{text!r} is not a data source; expected NAME:KIND:MIN:MAX")
    name, kind, minimum, maximum = parts
    if kind.lower() not in list(SourceKind):
        kinds = ", ".join(source_kind.upper() for source_kind in SourceKind)
        raise ValueError(f"{text!r} has the kind {kind!r}; there are {kinds}")
    return DataSource(name, SourceKind(kind.lower()), _bound(text, minimum), _bound(text, maximum))


def _bound(source: str, text: str) -> float | None:
    if text == "U":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{source!r} has the bound {text!r}; expected a number or U") from None


COMMON_TYPES = """
absolute value:ABSOLUTE:0:U
bitrate value:GAUGE:0:4294967295
bytes value:GAUGE:0:U
cache_operation value:DERIVE:0:U
cache_ratio value:GAUGE:0:100
cache_result value:DERIVE:0:U
cache_size value:GAUGE:0:U
capacity value:GAUGE:0:U
charge value:GAUGE:0:U
clock_skew_ms value:GAUGE:-60000:60000
connections value:DERIVE:0:U
contextswitch value:DERIVE:0:U
count value:GAUGE:0:U
counter value:COUNTER:U:U
cpu value:DERIVE:0:U
cpufreq value:GAUGE:0:U
current value:GAUGE:U:U
current_connections value:GAUGE:0:U
current_sessions value:GAUGE:0:U
delay value:GAUGE:-1000000:1000000
derive value:DERIVE:0:U
df used:GAUGE:0:U free:GAUGE:0:U
df_complex value:GAUGE:0:U
df_inodes value:GAUGE:0:U
disk_io_time io_time:DERIVE:0:U weighted_io_time:DERIVE:0:U
disk_latency read:GAUGE:0:U write:GAUGE:0:U
disk_merged read:DERIVE:0:U write:DERIVE:0:U
disk_octets read:DERIVE:0:U write:DERIVE:0:U
disk_ops read:DERIVE:0:U write:DERIVE:0:U
disk_time read:DERIVE:0:U write:DERIVE:0:U
duration seconds:GAUGE:0:U
energy value:GAUGE:U:U
energy_wh value:GAUGE:U:U
entropy value:GAUGE:0:4294967295
errors value:DERIVE:0:U
fanspeed value:GAUGE:0:U
file_size value:GAUGE:0:U
files value:GAUGE:0:U
flow value:GAUGE:0:U
fork_rate value:DERIVE:0:U
frequency value:GAUGE:0:U
gauge value:GAUGE:U:U
humidity value:GAUGE:0:100
if_dropped rx:DERIVE:0:U tx:DERIVE:0:U
if_errors rx:DERIVE:0:U tx:DERIVE:0:U
if_octets rx:DERIVE:0:U tx:DERIVE:0:U
if_packets rx:DERIVE:0:U tx:DERIVE:0:U
invocations value:DERIVE:0:U
io_octets rx:DERIVE:0:U tx:DERIVE:0:U
io_ops read:DERIVE:0:U write:DERIVE:0:U
io_packets rx:DERIVE:0:U tx:DERIVE:0:U
irq value:DERIVE:0:U
latency value:GAUGE:0:U
load shortterm:GAUGE:0:5000 midterm:GAUGE:0:5000 longterm:GAUGE:0:5000
memory value:GAUGE:0:281474976710656
objects value:GAUGE:0:U
operations value:DERIVE:0:U
operations_per_second value:GAUGE:0:U
packets value:DERIVE:0:U
pending_operations value:GAUGE:0:U
percent value:GAUGE:0:100.1
ping value:GAUGE:0:65535
ping_droprate value:GAUGE:0:1
power value:GAUGE:U:U
pressure value:GAUGE:0:U
ps_count processes:GAUGE:0:1000000 threads:GAUGE:0:1000000
ps_cputime user:DERIVE:0:U syst:DERIVE:0:U
ps_pagefaults minflt:DERIVE:0:U majflt:DERIVE:0:U
ps_rss value:GAUGE:0:U
ps_state value:GAUGE:0:65535
queue_length value:GAUGE:0:U
records value:GAUGE:0:U
requests value:GAUGE:0:U
response_code value:GAUGE:0:U
response_time value:GAUGE:0:U
sessions value:GAUGE:0:U
signal_power value:GAUGE:U:0
signal_quality value:GAUGE:0:U
state value:GAUGE:0:U
swap value:GAUGE:0:U
swap_io value:DERIVE:0:U
tcp_connections value:GAUGE:0:4294967295
temperature value:GAUGE:U:U
threads value:GAUGE:0:U
time_left_ms value:GAUGE:0:U
total_bytes value:DERIVE:0:U
total_connections value:DERIVE:0:U
total_operations value:DERIVE:0:U
total_requests value:DERIVE:0:U
total_sessions value:DERIVE:0:U
total_threads value:DERIVE:0:U
total_time_in_ms value:DERIVE:0:U
uptime value:GAUGE:0:4294967295
users value:GAUGE:0:65535
voltage value:GAUGE:U:U
vmpage_faults minflt:DERIVE:0:U majflt:DERIVE:0:U
vmpage_io in:DERIVE:0:U out:DERIVE:0:U
vmpage_number value:GAUGE:0:4294967295
"""

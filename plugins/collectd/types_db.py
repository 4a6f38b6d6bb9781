"""Types: what collectd knows of a reading's values, from files in the format of types.db(5).

A *type* such as `if_octets` is a list of *data sources*: `rx` and `tx`, each with a kind that says
how its numbers become a reading, and with the least and the greatest reading that can be true.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from plugins.base import PluginError
from plugins.collectd.common_types import COMMON_TYPES

log = logging.getLogger(__name__)

SYSTEM_TYPES_DB = Path("/usr/share/collectd/types.db")
_SEPARATORS = re.compile(r"[\s,]+")
_SOURCE_PARTS = 4


class SourceKind(StrEnum):
    """How the numbers of a data source are meant; the text is that of collectd's Python API."""

    GAUGE = "gauge"
    COUNTER = "counter"
    DERIVE = "derive"
    ABSOLUTE = "absolute"


@dataclass(frozen=True, slots=True)
class DataSource:
    """One number of a type; None is no bound."""

    name: str
    kind: SourceKind
    minimum: float | None
    maximum: float | None


DataSet = tuple[DataSource, ...]
Types = Mapping[str, DataSet]


def load_types(files: Iterable[Path], *, system: Path = SYSTEM_TYPES_DB) -> Types:
    """Return the common types, those of an installed collectd, and those of `files`.

    A later definition replaces an earlier one. A bad line is logged and left out, as in collectd.

    Raises:
        PluginError: one of `files` can't be read.
    """
    types, _ = parse_types(COMMON_TYPES)
    for path in [*([system] if system.is_file() else []), *files]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise PluginError(f"types_db: {path} can't be read: {error.strerror}") from error
        found, faults = parse_types(text)
        types |= found
        for fault in faults:
            log.warning("%s, %s", path, fault)
    return types


def parse_types(text: str) -> tuple[dict[str, DataSet], list[str]]:
    """Return type name to its data sources, and what is wrong with each bad line.

    Source: types.db(5); like collectd it takes spaces or commas between data sources.
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
        raise ValueError("it has no data source; expected NAME:KIND:MIN:MAX")
    data_set = tuple(_data_source(text) for text in texts)
    if len({source.name for source in data_set}) < len(data_set):
        raise ValueError("two data sources have the same name")
    return data_set


def _data_source(text: str) -> DataSource:
    parts = text.split(":")
    if len(parts) != _SOURCE_PARTS or not parts[0]:
        raise ValueError(f"{text!r} is no data source; expected NAME:KIND:MIN:MAX")
    name, kind, minimum, maximum = parts
    if kind.lower() not in list(SourceKind):
        known = ", ".join(one.upper() for one in SourceKind)
        raise ValueError(f"{text!r} has the kind {kind!r}; there are {known}")
    return DataSource(name, SourceKind(kind.lower()), _bound(text, minimum), _bound(text, maximum))


def _bound(source: str, text: str) -> float | None:
    if text == "U":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{source!r} has the bound {text!r}; expected a number or U") from None

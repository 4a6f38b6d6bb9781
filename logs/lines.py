"""Lines as Arrow tables: of appliances' batches, of attempts' logs, and of events of the portal.

All sources have the same columns, so that a search filters them in the same way.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from logs import arrow
from protocol.lines import LEVELS, ApplianceLine, LogLevel


class Source(StrEnum):
    """Where lines come from."""

    JOB = "job"
    APPLIANCE = "appliance"
    EVENT = "event"
    ALERT = "alert"
    AUDIT = "audit"


NUMBER_OF_LEVEL = {level: number for number, level in enumerate(LEVELS)}
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("ns", "UTC")),
        ("sequence", pa.int64()),
        ("source", pa.string()),
        ("level", pa.int8()),
        ("appliance", pa.string()),
        ("job", pa.string()),
        ("attempt", pa.int32()),
        ("unit", pa.string()),
        ("event", pa.string()),
        ("subject", pa.string()),
        ("text", pa.string()),
    ]
)
_DEFAULTS: dict[str, object] = {
    "sequence": 0,
    "level": NUMBER_OF_LEVEL[LogLevel.INFO],
    "appliance": "",
    "job": "",
    "attempt": 0,
    "unit": "",
    "event": "",
    "subject": "",
}
_RECORD = (
    r"^(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?)Z (?P<unit>stdout|stderr) [FP] "
    r"(?P<text>(?s:.*))$"
)
# Colors of terminals and the like, which would be parts of words.
_CONTROLS = r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[()][A-Z0-9])"
# What programs write near the beginning of a line; of several, the most serious counts. Tests for
# words are many times faster than extracting one.
_HEAD_CHARACTERS = 80
_LEVEL_FIELD = r'(?i)\b(?:level|lvl|severity)"?\s?[=:]\s?"?(?:%s)\b'
_LEVEL_WORD = r"(?:^|[\s\[(|<:])(?:%s)(?:$|[\s\]):|>,])"
_LEVEL_PATTERNS = {
    LogLevel.DEBUG: "TRACE|DEBUG",
    LogLevel.WARNING: "WARN|WARNING",
    LogLevel.ERROR: "ERROR|ERR",
    LogLevel.CRITICAL: "CRITICAL|CRIT|FATAL|PANIC|EMERG|ALERT",
}
# Of glog, and of Python.
_OTHER_PATTERNS = {
    LogLevel.WARNING: r"^W\d{4} \d\d:",
    LogLevel.ERROR: r"^(?:E\d{4} \d\d:|Traceback \(most recent|[\w.]*(?:Error|Exception)(?:$|:))",
    LogLevel.CRITICAL: r"^F\d{4} \d\d:",
}
_lines_of_batch = msgspec.json.Decoder(list[ApplianceLine])


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows with some of the columns as a table; the others have their defaults."""
    return pa.Table.from_pylist([_DEFAULTS | dict(row) for row in rows], schema=SCHEMA)


def lines_of_batch(appliance_id: str, data: str) -> pa.Table:
    """Return the lines that an appliance has sent."""
    return table_of(
        {
            "at": line.at_ns,
            "sequence": number,
            "source": Source.APPLIANCE.value,
            "level": NUMBER_OF_LEVEL[line.level],
            "appliance": appliance_id,
            "unit": line.unit,
            "event": line.event.value,
            "subject": line.subject,
            "text": line.text,
        }
        for number, line in enumerate(_lines_of_batch.decode(data))
    )


def lines_of_log(
    data: bytes, *, offset: int, default_ns: int, constants: Mapping[str, Any]
) -> pa.Table:
    """Return the lines of a part of an attempt's log.

    Args:
        data: records of `protocol.logs`, from the beginning of one.
        offset: of `data` in the log; it numbers the lines, whatever the parts are.
        default_ns: time of lines before the first that has one.
        constants: values of the columns `job`, `attempt` and `appliance`.
    """
    if not data:
        return SCHEMA.empty_table()
    raw = data.removesuffix(b"\n").split(b"\n")
    lengths = np.fromiter(map(len, raw), dtype=np.int64, count=len(raw)) + 1
    sequence = offset + np.cumsum(lengths) - lengths
    lines = pa.array(data.decode(errors="replace").removesuffix("\n").split("\n"))
    records = arrow.pc.extract_regex(lines, _RECORD)
    text = arrow.pc.coalesce(arrow.pc.struct_field(records, "text"), lines)
    if b"\x1b" in data:
        text = arrow.pc.replace_substring_regex(text, pattern=_CONTROLS, replacement="")
    at = arrow.pc.cast(arrow.pc.struct_field(records, "at"), pa.timestamp("ns"), safe=False)
    at = arrow.pc.fill_null(
        arrow.pc.fill_null_forward(at), pa.scalar(default_ns, pa.timestamp("ns"))
    )
    columns: dict[str, Any] = {
        "at": arrow.pc.cast(at, pa.timestamp("ns", "UTC")),
        "sequence": pa.array(sequence),
        "level": levels_of(text),
        "unit": arrow.pc.fill_null(arrow.pc.struct_field(records, "unit"), "output"),
        "text": text,
    }
    values = _DEFAULTS | {"source": Source.JOB.value} | dict(constants)
    arrays = [
        columns[field.name]
        if field.name in columns
        else pa.repeat(pa.scalar(values[field.name], field.type), len(lines))
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def levels_of(text: pa.Array) -> pa.Array:
    """Return the levels of lines by what programs write into them; `info` where they don't."""
    head = arrow.pc.utf8_slice_codeunits(text, 0, _HEAD_CHARACTERS)
    levels = pa.repeat(pa.scalar(NUMBER_OF_LEVEL[LogLevel.INFO], pa.int8()), len(text))
    for level, words in _LEVEL_PATTERNS.items():
        patterns = [_LEVEL_WORD % words, _LEVEL_FIELD % words]
        patterns += [_OTHER_PATTERNS[level]] if level in _OTHER_PATTERNS else []
        is_level = arrow.pc.match_substring_regex(
            head, "|".join(f"(?:{part})" for part in patterns)
        )
        levels = arrow.pc.if_else(is_level, pa.scalar(NUMBER_OF_LEVEL[level], pa.int8()), levels)
    return levels

"""collectd's wire formats: JSON, and the Command format of `PUTVAL` lines.

JSON is an array of value lists or of notifications; a command reads
`PUTVAL host/plugin-instance/type-instance t:v:v`. It has values without names: their names and
kinds (gauge, derive, counter, absolute) come from `collectd_types.txt`, which lists them with their
types indented below. Types that are not listed have one gauge named `value`.

Source: format_json.c, utils_cmd_putval.c and types.db of collectd 5.12; collectd-unixsock(5).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from access.errors import BadRequestError
from access.ingest.collectd_values import (
    CollectdError,
    Notification,
    Sources,
    ValueList,
    time_ns_of,
)
from core.clock import to_ns
from core.strict_json import MalformedJSONError, decode_json

_TYPES = Path(__file__).with_name("collectd_types.txt")
_KINDS = frozenset({"gauge", "derive", "counter", "absolute"})
_ALERT_PREFIX = "collectd_"
# Labels that are the same for all plugins; any other is the plugin's name.
_COMMON_LABELS = frozenset({"alertname", "instance", "severity", "service", "type"})
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\(.)")
_OPTION = re.compile(r"[A-Za-z_]\w*=")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CONSTANT = re.compile(rb"NaN|Infinity")
_IDENTITY_PARTS = 3
_SHOWN_CHARACTERS = 60


class _Values(msgspec.Struct):
    values: list[float | None]
    dstypes: list[str]
    dsnames: list[str]
    time: float
    plugin: str
    type: str
    host: str = ""
    interval: float = 0.0
    plugin_instance: str = ""
    type_instance: str = ""


class _Alert(msgspec.Struct):
    labels: dict[str, str]
    annotations: dict[str, Any] = {}
    startsAt: datetime | None = None  # noqa: N815 - collectd's spelling


def read_json(
    body: bytes, *, now_ns: int
) -> Iterator[tuple[int, ValueList | Notification | CollectdError]]:
    """Yield each item of the array by its position, or its error.

    Raises:
        MalformedJSONError: the body is not JSON; names the byte.
        BadRequestError: it is not an array.
    """
    items = _decode(body)
    if not isinstance(items, list):
        raise BadRequestError(
            'The body is not an array of value lists. Set Format "JSON" in collectd\'s write_http.',
            code="bad_json",
        )
    for position, item in enumerate(items):
        try:
            yield position, _read_item(item, now_ns=now_ns)
        except msgspec.ValidationError as error:
            yield position, CollectdError(str(error).replace("`", ""))
        except CollectdError as error:
            yield position, error
        except RecursionError:
            yield position, CollectdError("it is nested too deeply")


def _decode(body: bytes) -> object:
    """Return the JSON of a body, in which bare NaN and Infinity are unknown values, as null is.

    Plugins written in C print them so.
    """
    try:
        return decode_json(body)
    except MalformedJSONError:
        if not _CONSTANT.search(body):
            raise
        try:
            strict = msgspec.json.encode(json.loads(body, parse_constant=lambda _: None))
        except (ValueError, RecursionError, OverflowError):
            strict = body
        return decode_json(strict)


def _read_item(item: object, *, now_ns: int) -> ValueList | Notification:
    if isinstance(item, dict) and "labels" in item:
        return _notification(msgspec.convert(item, _Alert), now_ns=now_ns)
    values = msgspec.convert(item, _Values)
    if not values.plugin or not values.type:
        raise CollectdError("plugin or type is empty")
    if not 0 < len(values.values) == len(values.dsnames) == len(values.dstypes):
        raise CollectdError(
            f"there are {len(values.values)} values, {len(values.dsnames)} dsnames and "
            f"{len(values.dstypes)} dstypes; the numbers must be equal"
        )
    unknown = set(values.dstypes) - _KINDS
    if unknown:
        raise CollectdError(f"dstype {min(unknown)[:50]!r} is unknown")
    return ValueList(
        host=values.host,
        plugin=values.plugin,
        plugin_instance=values.plugin_instance,
        type=values.type,
        type_instance=values.type_instance,
        time_ns=time_ns_of(values.time),
        interval_seconds=values.interval,
        sources=tuple(zip(values.dsnames, values.dstypes, strict=True)),
        numbers=tuple(values.values),
    )


def _notification(alert: _Alert, *, now_ns: int) -> Notification:
    """Read an alert: the label with the plugin's name has its instance, `type` the other one."""
    labels, notes = alert.labels, alert.annotations
    plugin = next((name for name in labels if name not in _COMMON_LABELS), "")
    severity = labels.get("severity") or str(notes.get("severity", ""))
    starts_at = alert.startsAt
    is_exact = starts_at is not None and starts_at.tzinfo is not None
    return Notification(
        host=labels.get("instance", ""),
        severity=severity.lower() or "unknown",
        message=str(notes.get("summary", "")),
        time_ns=to_ns(starts_at) if starts_at is not None and is_exact else now_ns,
        tags={
            "alert": labels.get("alertname", "").removeprefix(_ALERT_PREFIX),
            "plugin": plugin,
            "instance": labels.get(plugin, ""),
            "type_instance": labels.get("type", ""),
        },
    )


def read_commands(body: bytes, *, now_ns: int) -> Iterator[tuple[int, ValueList | CollectdError]]:
    """Yield the reading of each line by its position, or its error."""
    for position, line in enumerate(body.decode(errors="replace").split("\n")):
        words = [
            _ESCAPED.sub(r"\1", quoted) if bare is None else bare
            for quoted, bare in (match.groups() for match in _WORD.finditer(line))
        ]
        if not words or words[0].startswith("#"):
            continue
        try:
            for values in _read_command(words, now_ns=now_ns):
                yield position, values
        except CollectdError as error:
            yield position, error


def sources_of(type_name: str, *, count: int) -> Sources:
    """Return the data sources of a type; numbered gauges if it has another number of values."""
    sources = _sources_by_type().get(type_name, (("value", "gauge"),))
    if len(sources) == count:
        return sources
    return tuple((f"value{number}", "gauge") for number in range(1, count + 1))


@cache
def _sources_by_type() -> Mapping[str, Sources]:
    by_type: dict[str, Sources] = {}
    sources: Sources = ()
    for line in _TYPES.read_text(encoding="ascii").splitlines():
        if line.endswith(" ="):
            names = line.removesuffix(" =").split()
            sources = tuple((name, kind) for name, _, kind in (n.partition(":") for n in names))
        else:
            by_type |= dict.fromkeys(line.split(), sources)
    return by_type


def _read_command(words: list[str], *, now_ns: int) -> list[ValueList]:
    if words[0].upper() != "PUTVAL":
        raise CollectdError(f"{_shown(words[0])} is not a command; expected PUTVAL")
    host, plugin, kind = _identity(words[1] if len(words) > 1 else "")
    interval_seconds, readings = 0.0, []
    for word in words[2:]:
        if _OPTION.match(word):
            name, _, value = word.partition("=")
            if name.lower() == "interval":
                interval_seconds = _number(value)
            continue
        moment, *texts = word.split(":")
        numbers = tuple(_number_or_none(text) for text in texts)
        if not numbers:
            raise CollectdError(f"{_shown(word)} is not a reading; expected TIME:VALUE")
        readings.append(
            ValueList(
                host=host,
                plugin=plugin[0],
                plugin_instance=plugin[1],
                type=kind[0],
                type_instance=kind[1],
                time_ns=now_ns if moment == "N" else time_ns_of(_number(moment)),
                interval_seconds=interval_seconds,
                sources=sources_of(kind[0], count=len(numbers)),
                numbers=numbers,
            )
        )
    if not readings:
        raise CollectdError("there are no values after the identifier")
    return readings


def _identity(text: str) -> tuple[str, tuple[str, str], tuple[str, str]]:
    parts = text.split("/", _IDENTITY_PARTS - 1)
    if len(parts) == _IDENTITY_PARTS:
        host, of_plugin, of_type = parts
        plugin, _, plugin_instance = of_plugin.partition("-")
        kind, _, type_instance = of_type.partition("-")
        if host and plugin and kind:
            return host, (plugin, plugin_instance), (kind, type_instance)
    raise CollectdError(
        f"{_shown(text)} is not an identifier; expected host/plugin-instance/type-instance"
    )


def _number_or_none(text: str) -> float | None:
    """Return a value; collectd writes `U`, `nan` or `inf` for an unknown one."""
    if text == "U" or text.lstrip("+-").lower() in {"nan", "inf"}:
        return None
    number = _number(text)
    return number if math.isfinite(number) else None


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise CollectdError(f"{_shown(text)} is not a number")
    return float(text)


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])

"""collectd's Command format: lines of `PUTVAL host/plugin-instance/type-instance t:v:v`.

Source: collectd-unixsock(5); utils_cmd_putval.c of collectd 5.12.
"""

import math
import re
from collections.abc import Iterator

from access.collectd_types import sources_of
from access.collectd_values import ValueFaultError, ValueList, time_ns_of

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\(.)")
_OPTION = re.compile(r"[A-Za-z_]\w*=")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_IDENTITY_PARTS = 3
_SHOWN_CHARACTERS = 60


def read_commands(body: bytes, *, now_ns: int) -> Iterator[tuple[int, ValueList | ValueFaultError]]:
    """Yield the reading of each line by its position, or what is wrong with it."""
    for position, line in enumerate(body.decode(errors="replace").split("\n")):
        words = [
            _ESCAPED.sub(r"\1", quoted) if bare is None else bare
            for quoted, bare in (match.groups() for match in _WORD.finditer(line))
        ]
        if not words or words[0].startswith("#"):
            continue
        try:
            for values in _read(words, now_ns=now_ns):
                yield position, values
        except ValueFaultError as error:
            yield position, error


def _read(words: list[str], *, now_ns: int) -> list[ValueList]:
    if words[0].upper() != "PUTVAL":
        raise ValueFaultError(f"{_shown(words[0])} is no command; expected PUTVAL")
    host, plugin, kind = _identity(words[1] if len(words) > 1 else "")
    interval_seconds, readings = 0.0, []
    for word in words[2:]:
        if _OPTION.match(word):
            name, _, value = word.partition("=")
            if name.lower() == "interval":
                interval_seconds = _number(value)
            continue
        moment, *texts = word.split(":")
        numbers = tuple(None if text == "U" else _number_or_none(text) for text in texts)
        if not numbers:
            raise ValueFaultError(f"{_shown(word)} is no reading; expected TIME:VALUE")
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
        raise ValueFaultError("there are no values behind the identifier")
    return readings


def _identity(text: str) -> tuple[str, tuple[str, str], tuple[str, str]]:
    parts = text.split("/", _IDENTITY_PARTS - 1)
    if len(parts) == _IDENTITY_PARTS:
        host, of_plugin, of_type = parts
        plugin, _, plugin_instance = of_plugin.partition("-")
        kind, _, type_instance = of_type.partition("-")
        if host and plugin and kind:
            return host, (plugin, plugin_instance), (kind, type_instance)
    raise ValueFaultError(
        f"{_shown(text)} is no identifier; expected host/plugin-instance/type-instance"
    )


def _number_or_none(text: str) -> float | None:
    """Return a value; collectd writes `nan` and `inf` where a gauge is not known."""
    if text.lstrip("+-").lower() in {"nan", "inf"}:
        return None
    number = _number(text)
    return number if math.isfinite(number) else None


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueFaultError(f"{_shown(text)} is no number")
    return float(text)


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])

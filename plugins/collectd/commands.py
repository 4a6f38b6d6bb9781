"""The plain-text protocol: lines of `PUTVAL` and `PUTNOTIF`, as programs write them for collectd.

    PUTVAL "host/plugin-instance/type-instance" interval=10 1700000000:1:2 N:3:4
    PUTNOTIF severity=warning time=1700000000 plugin=ups message="on battery"

Source: collectd-exec(5), collectd-unixsock(5); where they are silent, collectd 5.12's behavior.
"""

import math
import re
from collections.abc import Callable

from core.clock import NS_PER_SECOND
from plugins.collectd.types_db import DataSet, SourceKind, Types
from plugins.collectd.values import (
    LONGEST_MESSAGE_BYTES,
    Identity,
    Notification,
    Number,
    Severity,
    ValueList,
    clean_name,
    cut,
)

_OPTION = re.compile(r"([A-Za-z0-9_:]+)=(.*)", re.DOTALL)
_INTEGER = re.compile(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))(?:\.\d*)?\s*", re.ASCII)
_RANGES = {
    SourceKind.COUNTER: (0, 2**64 - 1),
    SourceKind.ABSOLUTE: (0, 2**64 - 1),
    SourceKind.DERIVE: (-(2**63), 2**63 - 1),
}
_IDENTITY_PARTS = 3
_LATEST_SECONDS = 2**63 / NS_PER_SECOND
_SHOWN_CHARACTERS = 60

Word = tuple[str, int]  # the text, and its column counted from 1


class CommandError(ValueError):
    """A line is invalid; `column` counts from 1."""

    def __init__(self, message: str, *, column: int) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column


def parse_command(line: str, types: Types) -> list[ValueList] | Notification | None:
    """Parse one line; None for an empty line or a comment.

    Raises:
        CommandError: what is wrong and where.
    """
    words = _split(line)
    if not words or words[0][0].startswith("#"):
        return None
    command, column = words[0]
    if command.upper() == "PUTVAL":
        return _parse_values(words, types)
    if command.upper() == "PUTNOTIF":
        return _parse_notification(words)
    raise CommandError(
        f"{_shown(command)} is not a command; expected PUTVAL or PUTNOTIF", column=column
    )


def _split(line: str) -> list[Word]:
    """Split a line into words; quotes group words, and `\\` escapes a quote."""
    if '"' not in line:
        return [(match[0], match.start() + 1) for match in re.finditer(r"\S+", line)]
    words: list[Word] = []
    at = 0
    while at < len(line):
        if line[at].isspace():
            at += 1
        else:
            text, end = _word(line, at)
            words.append((text, at + 1))
            at = end
    return words


def _word(line: str, start: int) -> tuple[str, int]:
    """Return the word that starts here and its end; a closing quote always ends it."""
    letters: list[str] = []
    at, opened_at = start, None
    while at < len(line):
        letter = line[at]
        if letter == '"':
            if opened_at is not None:
                return "".join(letters), at + 1
            opened_at = at
        elif letter == "\\" and opened_at is not None:
            at += 1
            letters.append(line[at : at + 1])
        elif letter.isspace() and opened_at is None:
            break
        else:
            letters.append(letter)
        at += 1
    if opened_at is not None:
        raise CommandError("unterminated quote", column=opened_at + 1)
    return "".join(letters), at


def _parse_values(words: list[Word], types: Types) -> list[ValueList]:
    if len(words) == 1:
        raise CommandError("PUTVAL needs an identifier and values", column=words[0][1])
    identity = _identity(*words[1])
    data_set = types.get(identity.type)
    if data_set is None:
        raise CommandError(
            f"type {_shown(identity.type)} is not in any types.db; add its file to types_db",
            column=words[1][1],
        )
    interval_seconds: float | None = None
    lists = []
    for text, column in words[2:]:
        option = _OPTION.fullmatch(text)
        if option is None:
            time_ns, values = _numbers(text, data_set, identity, column)
            lists.append(
                ValueList(
                    identity=identity,
                    values=values,
                    time_ns=time_ns,
                    interval_seconds=interval_seconds,
                )
            )
        elif option[1].lower() == "interval":
            interval_seconds = _positive(option[2]) or interval_seconds
    if not lists:
        raise CommandError("no values after the identifier", column=words[1][1])
    return lists


def _identity(text: str, column: int) -> Identity:
    parts = text.split("/", _IDENTITY_PARTS - 1)
    if len(parts) != _IDENTITY_PARTS or not all(parts):
        raise CommandError(
            f"{_shown(text)} is not an identifier; expected host/plugin-instance/type-instance",
            column=column,
        )
    host, of_plugin, of_type = parts
    plugin, _, plugin_instance = of_plugin.partition("-")
    kind, _, type_instance = of_type.partition("-")
    if not plugin or not kind:
        raise CommandError(f"{_shown(text)} has no plugin or no type", column=column)
    return Identity(
        host=clean_name(host),
        plugin=clean_name(plugin),
        plugin_instance=clean_name(plugin_instance),
        type=kind,
        type_instance=clean_name(type_instance),
    )


def _numbers(
    text: str, data_set: DataSet, identity: Identity, column: int
) -> tuple[int | None, tuple[Number | None, ...]]:
    moment, *texts = text.split(":")
    if len(texts) != len(data_set):
        names = ":".join(["TIME", *(source.name for source in data_set)])
        raise CommandError(
            f"type {identity.type} takes {names}, and {_shown(text)} has {len(texts)} values",
            column=column,
        )
    time_ns = None if moment == "N" else _time_ns(moment, column)
    values: list[Number | None] = []
    column += len(moment) + 1
    for source, value_text in zip(data_set, texts, strict=True):
        parse: Callable[[str, SourceKind], Number | None] = (
            _gauge if source.kind is SourceKind.GAUGE else _integer
        )
        try:
            values.append(None if value_text == "U" else parse(value_text, source.kind))
        except ValueError as error:
            raise CommandError(
                f"{source.name} is {_shown(value_text)}: {error}", column=column
            ) from None
        column += len(value_text) + 1
    return time_ns, tuple(values)


def _gauge(text: str, kind: SourceKind) -> float | None:
    del kind
    try:
        value = float.fromhex(text) if "0x" in text.lower() else _float(text)
    except (OverflowError, ValueError):
        raise ValueError("expected a number or U") from None
    return value if math.isfinite(value) else None


def _integer(text: str, kind: SourceKind) -> int:
    """Parse an integer; like collectd, accept hexadecimal and truncate fractions."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError("expected a whole number or U")
    digits = match[1]
    value = int(digits, 16) if "x" in digits.lower() else int(digits)
    least, greatest = _RANGES[kind]
    if not least <= value <= greatest:
        raise ValueError(f"a {kind} is from {least} to {greatest}")
    return value


def _time_ns(text: str, column: int) -> int:
    seconds = _positive(text)
    if seconds is None or seconds >= _LATEST_SECONDS:
        raise CommandError(
            f"the time is {_shown(text)}; expected seconds since 1970 or N", column=column
        )
    whole, _, fraction = text.strip().partition(".")
    if whole.isdecimal() and (
        not fraction or fraction.isdecimal()
    ):  # exact beyond a float's 53 bits
        return int(whole) * NS_PER_SECOND + int(fraction.ljust(9, "0")[:9] or 0)
    return round(seconds * NS_PER_SECOND)


def _positive(text: str) -> float | None:
    try:
        value = _float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def _float(text: str) -> float:
    if "_" in text:  # Python's own way to group digits
        raise ValueError("expected a number")
    return float(text)


def _parse_notification(words: list[Word]) -> Notification:
    options: dict[str, Word] = {}
    for index, (text, column) in enumerate(words[1:], start=1):
        option = _OPTION.fullmatch(text)
        if option is None:
            raise CommandError(
                f"{_shown(text)} is not an option; expected NAME=VALUE", column=column
            )
        name = option[1].lower()
        if name == "message":  # takes the rest of the line
            tail = " ".join(word for word, _ in words[index + 1 :])
            options[name] = (f"{option[2]} {tail}".strip(), column)
            break
        options[name] = (option[2], column)
    for name in ("severity", "time", "message"):
        if name not in options:
            raise CommandError(f"PUTNOTIF needs the option {name}=", column=words[0][1])
    about = ("host", "plugin", "plugin_instance", "type", "type_instance")
    names = {name: clean_name(options[name][0]) for name in about if name in options}
    return Notification(
        identity=Identity(**names),
        severity=_severity(*options["severity"]),
        message=cut(options["message"][0], LONGEST_MESSAGE_BYTES),
        time_ns=_time_ns(*options["time"]),
    )


def _severity(text: str, column: int) -> Severity:
    try:
        return Severity[text.upper()]
    except KeyError:
        raise CommandError(
            f"severity is {_shown(text)}; expected failure, warning or okay", column=column
        ) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")

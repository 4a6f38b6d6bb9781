"""Readings as collectd carries them: value lists, notifications and the names in both."""

import logging
from dataclasses import dataclass
from enum import IntEnum

LONGEST_NAME_BYTES = 127
LONGEST_MESSAGE_BYTES = 255

Number = float | int


class Severity(IntEnum):
    """How grave a notification is; the numbers are collectd's."""

    FAILURE = 1
    WARNING = 2
    OKAY = 4


LEVELS = {
    Severity.FAILURE: logging.ERROR,
    Severity.WARNING: logging.WARNING,
    Severity.OKAY: logging.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which series a reading belongs to; names that do not apply are empty."""

    host: str = ""
    plugin: str
    plugin_instance: str = ""
    type: str
    type_instance: str = ""

    def __str__(self) -> str:
        """As collectd writes it: `host/plugin-instance/type-instance`."""
        plugin = "-".join(filter(None, (self.plugin, self.plugin_instance)))
        kind = "-".join(filter(None, (self.type, self.type_instance)))
        return f"{self.host}/{plugin}/{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueList:
    """The numbers of one instant, one for each data source of the type.

    Attributes:
        values: None where the program says that a number is unknown.
        time_ns: nanoseconds since the epoch; None means now.
        interval_seconds: how often the program gives this reading; None when it does not say.
    """

    identity: Identity
    values: tuple[Number | None, ...]
    time_ns: int | None = None
    interval_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message about the host or about one series; unlike a value list it may name no type."""

    severity: Severity
    message: str
    time_ns: int | None = None
    host: str = ""
    plugin: str = ""
    plugin_instance: str = ""
    type: str = ""
    type_instance: str = ""


def clean_name(name: str) -> str:
    """Return a name as collectd passes it on: no slashes, bounded.

    Source: escape_slashes() of collectd 5.12: `/` alone is `root`, a leading slash goes away and
    the others become `_`.
    """
    if name == "/":
        return "root"
    return cut(name.removeprefix("/").replace("/", "_"), LONGEST_NAME_BYTES)


def cut(text: str, longest_bytes: int) -> str:
    """Return text cut to so many bytes of UTF-8, at a character's end."""
    if len(text) * 4 <= longest_bytes:
        return text
    return text.encode(errors="replace")[:longest_bytes].decode(errors="ignore")

"""collectd's data model: value lists, notifications and identities."""

import logging
from dataclasses import dataclass
from enum import IntEnum

LONGEST_NAME_BYTES = 127
LONGEST_MESSAGE_BYTES = 255

Number = float | int


class Severity(IntEnum):
    """Severity of a notification, with collectd's numbers."""

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
    """Identity of a series; unused names are empty."""

    host: str = ""
    plugin: str = ""
    plugin_instance: str = ""
    type: str = ""
    type_instance: str = ""

    def __str__(self) -> str:
        """Return the identity as collectd writes it: `host/plugin-instance/type-instance`."""
        plugin = "-".join(filter(None, (self.plugin, self.plugin_instance)))
        kind = "-".join(filter(None, (self.type, self.type_instance)))
        return f"{self.host}/{plugin}/{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueList:
    """Values at one instant, one for each data source of the type.

    Attributes:
        values: None for unknown numbers.
        time_ns: nanoseconds since the epoch; None means now.
        interval_seconds: interval of the reading, if known.
    """

    identity: Identity
    values: tuple[Number | None, ...]
    time_ns: int | None = None
    interval_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message about the host or one series, whose plugin and type may be empty."""

    identity: Identity
    severity: Severity
    message: str
    time_ns: int | None = None


def clean_name(name: str) -> str:
    """Return a name without slashes and truncated, as collectd does.

    Source: escape_slashes() of collectd 5.12: `/` alone is `root`, a leading slash goes away and
    the others become `_`.
    """
    if name == "/":
        return "root"
    return cut(name.removeprefix("/").replace("/", "_"), LONGEST_NAME_BYTES)


def cut(text: str, longest_bytes: int) -> str:
    """Return text truncated to this many bytes of UTF-8, at a character boundary."""
    if len(text) * 4 <= longest_bytes:
        return text
    return text.encode(errors="replace")[:longest_bytes].decode(errors="ignore")

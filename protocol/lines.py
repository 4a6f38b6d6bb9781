"""Lines of an appliance's own logs, as its agent sends them: journal and kernel ring.

A *batch* is stored as a whole or not at all, and once: its key is the hash of its lines, so that a
batch that is sent again after a lost answer changes nothing.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_TEXT_LENGTH = 8192
MAX_UNIT_LENGTH = 100
MAX_SUBJECT_LENGTH = 100
MAX_LINES = 5000
MAX_UPLOAD_BYTES = 2 * 1024 * 1024


class LogLevel(StrEnum):
    """How serious a line is, from the least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


LEVELS = tuple(LogLevel)


class LineEvent(StrEnum):
    """What a line of the kernel reports, as far as it is recognized."""

    NONE = ""
    XID = "xid"
    OOM_KILL = "oom_kill"
    MACHINE_CHECK = "machine_check"
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    DISK_ERROR = "disk_error"
    DROPPED = "dropped"


class ApplianceLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line.

    Attributes:
        at_ns: when it was written, in nanoseconds since 1970 (UTC).
        text: without the end of the line.
        level: how serious it is.
        unit: the systemd unit or program that wrote it; `kernel` for the kernel.
        event: what it reports.
        subject: what the event is about: a GPU's PCI address, a process, an interface or a disk.
    """

    at_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    text: Annotated[str, Meta(max_length=MAX_TEXT_LENGTH)]
    level: LogLevel = LogLevel.INFO
    unit: Annotated[str, Meta(max_length=MAX_UNIT_LENGTH)] = ""
    event: LineEvent = LineEvent.NONE
    subject: Annotated[str, Meta(max_length=MAX_SUBJECT_LENGTH)] = ""


class LineBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in the order in which they were written, and the key that makes them unique."""

    key: Annotated[str, Meta(min_length=16, max_length=64)]
    lines: Annotated[list[ApplianceLine], Meta(max_length=MAX_LINES)]


class LineUpload(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of one appliance."""

    batches: Annotated[list[LineBatch], Meta(max_length=100)]

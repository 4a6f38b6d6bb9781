"""The journal of systemd, by its own program: lines as they are written, from a cursor on."""

import logging
import os
import select
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from collector.logs.events import event_of
from collector.logs.settings import LogSettings
from protocol.lines import (
    LEVELS,
    MAX_TEXT_LENGTH,
    MAX_UNIT_LENGTH,
    ApplianceLine,
    LineEvent,
    LogLevel,
)

log = logging.getLogger(__name__)

PROGRAM = "journalctl"
READ_BYTES = 256 * 1024
# A longer entry is dropped: it is a core dump or the like.
MAX_ENTRY_BYTES = 1024 * 1024
# Lines from before the first start of the agent.
FIRST_LINES = 200
_FIELDS = "MESSAGE,PRIORITY,SYSLOG_IDENTIFIER,_SYSTEMD_UNIT,_TRANSPORT"
_LEVELS = (
    *(LogLevel.CRITICAL,) * 3,
    LogLevel.ERROR,
    LogLevel.WARNING,
    *(LogLevel.INFO,) * 2,
    LogLevel.DEBUG,
)
KERNEL = "kernel"


class Journal:
    """Follows the journal. For one thread.

    Args:
        settings: which lines.
        cursor: the last entry that was read before; empty for the first time.

    Attributes:
        cursor: the last entry that was read.
    """

    def __init__(self, settings: LogSettings, *, cursor: str = "") -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.cursor = cursor

    @staticmethod
    def is_available() -> bool:
        """Return whether this host has the journal's program."""
        return shutil.which(PROGRAM) is not None

    def read(self, timeout_seconds: float) -> Sequence[ApplianceLine]:
        """Return new lines, after waiting for the first of them.

        Raises:
            OSError: the journal can't be read now; the next call tries again.
        """
        if self._process is None:
            self._process = self._start()
        stdout = self._process.stdout
        if stdout is None:
            raise OSError(f"{PROGRAM} has no output")
        if not select.select([stdout], [], [], timeout_seconds)[0]:
            return []
        data = os.read(stdout.fileno(), READ_BYTES)
        if not data:
            self._raise_end()
        *entries, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_ENTRY_BYTES:
            log.warning("an entry of the journal has more than %d bytes", MAX_ENTRY_BYTES)
            self.close()
        return [line for line in map(self._line, entries) if line is not None]

    def close(self) -> None:
        """End the program; the next `read` goes on from the cursor."""
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        settings = self._settings
        matches = ["_TRANSPORT=kernel"] if settings.kernel != "none" else []
        for unit in settings.units:
            matches += ["+"] if matches else []
            matches.append(f"_SYSTEMD_UNIT={unit}")
        where = [f"--directory={settings.journal_directory}"] if settings.journal_directory else []
        # With --after-cursor, the first entry is lost if that of the cursor was deleted.
        begin = [f"--cursor={self.cursor}", "--no-tail"]
        begin = begin if self.cursor else [f"--lines={FIRST_LINES}"]
        options = ["--follow", "--output=json", f"--output-fields={_FIELDS}", "--quiet", "--all"]
        return subprocess.Popen(  # noqa: S603 - words of our own and of the admin, without a shell
            [PROGRAM, *options, *where, *begin, *matches],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _raise_end(self) -> None:
        process, self._process = self._process, None
        stderr = process.communicate()[1] if process is not None else b""
        reason = stderr.decode(errors="replace").strip() or "no reason given"
        if "cursor" in reason:
            # The journal was replaced: begin with what it has.
            self.cursor = ""
        raise OSError(f"{PROGRAM} ended: {reason[:200]}")

    def _line(self, entry: bytes) -> ApplianceLine | None:
        try:
            fields: dict[str, Any] = msgspec.json.decode(entry)
            before, self.cursor = self.cursor, fields["__CURSOR"]
            line = line_of_entry(fields) if self.cursor != before else None
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            log.debug("an entry of the journal can't be read: %s", error)
            return None
        return line if line is not None and is_wanted(line, self._settings) else None


def line_of_entry(fields: Mapping[str, Any]) -> ApplianceLine:
    """Return an entry of the journal as a line.

    Raises:
        KeyError, TypeError, ValueError: it has no time, or no text.
    """
    message = fields["MESSAGE"]
    # Text that is not UTF-8 is a list of bytes.
    text = bytes(message).decode(errors="replace") if isinstance(message, list) else message
    is_kernel = fields.get("_TRANSPORT") == KERNEL
    unit = fields.get("_SYSTEMD_UNIT") or fields.get("SYSLOG_IDENTIFIER") or ""
    return host_line(
        at_ns=int(fields["__REALTIME_TIMESTAMP"]) * 1000,
        text=text,
        priority=int(fields.get("PRIORITY", 6)),
        unit=KERNEL if is_kernel else str(unit),
    )


def host_line(*, at_ns: int, text: str, priority: int, unit: str) -> ApplianceLine:
    """Return a line of the host, cut to its limit, with its level by syslog's priority."""
    event, subject = event_of(text) if unit == KERNEL else (LineEvent.NONE, "")
    if len(text) > MAX_TEXT_LENGTH:
        mark = f"... ({len(text)} characters)"
        text = text[: MAX_TEXT_LENGTH - len(mark)] + mark
    return ApplianceLine(
        at_ns=at_ns,
        text=text,
        level=_LEVELS[min(max(priority, 0), 7)],
        unit=unit[:MAX_UNIT_LENGTH],
        event=event,
        subject=subject,
    )


def is_wanted(line: ApplianceLine, settings: LogSettings) -> bool:
    """Return whether the settings select a line."""
    level = LEVELS.index(line.level)
    if line.unit != KERNEL:
        return level >= LEVELS.index(settings.units_level)
    if settings.kernel == "all" or (line.event and settings.kernel != "none"):
        return True
    return settings.kernel == "warnings" and level >= LEVELS.index(LogLevel.WARNING)

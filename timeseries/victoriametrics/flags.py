"""What a VictoriaMetrics was started with, as far as a store depends on it.

The server drops samples older than its retention, and those more than two days ahead, and answers
204 all the same: the store therefore refuses them itself, by the server's own `/flags`.
"""

import re
from dataclasses import dataclass

DAY_MS = 86_400_000
MAX_AHEAD_MS = 2 * DAY_MS
# The server drops times before 1970; some days are left for queries that look further back.
FIRST_MS = 4 * DAY_MS

_FLAG = re.compile(r'^-([A-Za-z.]+)="(.*)"$', re.MULTILINE)
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)([hdwy]?)$")
_UNIT_MS = {"h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS, "y": 365 * DAY_MS, "": 31 * DAY_MS}
_DEFAULT_RETENTION = "1"
# Under these the names that a store writes are not the names that it reads.
_NAMING = ("influxSkipMeasurement", "influxSkipSingleField")
_DEDUPLICATION = (
    "start it with -dedup.minScrapeInterval=1ms: otherwise samples that were delivered twice count "
    "twice, or all but one of an interval are dropped"
)
_SEPARATOR = "influxMeasurementFieldSeparator"


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The options of one server.

    Attributes:
        retention_ms: how far back samples are kept; None where the server does not tell.
        faults: sentences on options that make it unfit for a store.
        warnings: sentences on options that change answers.
    """

    retention_ms: int | None = None
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def kept_ms(self, now_ms: int) -> tuple[int, int]:
        """Return the first and the last time that the server keeps."""
        oldest = FIRST_MS if self.retention_ms is None else now_ms - self.retention_ms
        return max(FIRST_MS, oldest), now_ms + MAX_AHEAD_MS


def parse_flags(text: str | None) -> ServerFlags:
    """Read what `/flags` answered; None stands for a server that keeps it to itself."""
    if text is None:
        return ServerFlags(
            warnings=("it does not show its options; samples older than its retention get lost",)
        )
    flags = dict(_FLAG.findall(text))
    return ServerFlags(_retention_ms(flags), tuple(_faults(flags)), tuple(_warnings(flags)))


def _retention_ms(flags: dict[str, str]) -> int | None:
    found = _DURATION.match(flags.get("retentionPeriod", _DEFAULT_RETENTION))
    return int(float(found[1]) * _UNIT_MS[found[2]]) if found else None


def _faults(flags: dict[str, str]) -> list[str]:
    named = [f"-{name}" for name in _NAMING if flags.get(name, "false") != "false"]
    if flags.get(_SEPARATOR, "_") != "_":
        named.append(f"-{_SEPARATOR}={flags[_SEPARATOR]}")
    return [f"start it without {name}: under it fields can't be told apart" for name in named]


def _warnings(flags: dict[str, str]) -> list[str]:
    if flags.get("dedup.minScrapeInterval") == "1ms":
        return []
    return [_DEDUPLICATION]

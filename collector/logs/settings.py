"""`[logs]` of `agent.toml`: which lines of the host's logs are sent."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from protocol.lines import LogLevel

MEBIBYTE = 2**20
UNIT_NAME = re.compile(r"[\w@:.\\-]+\.(?:service|scope|socket|mount|timer|slice)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Which lines are sent, and their bounds.

    Attributes:
        enabled: whether any are.
        kernel: `events` are XIDs, out-of-memory kills, machine checks, links and disk errors;
            `warnings` are these and all that the kernel reports as a warning or worse.
        units: systemd units, such as `docker.service`.
        units_level: the least level of their lines.
        lines_per_second: of each unit, with bursts of ten seconds' worth; the others are counted.
        buffer_max_bytes: size limit of the lines that wait for the portal.
        journal_directory: a journal other than this system's.
    """

    enabled: bool = True
    kernel: Literal["none", "events", "warnings", "all"] = "warnings"
    units: list[str] = field(default_factory=list)
    units_level: LogLevel = LogLevel.INFO
    lines_per_second: Annotated[float, Meta(gt=0)] = 50.0
    buffer_max_bytes: Annotated[int, Meta(ge=MEBIBYTE)] = 64 * MEBIBYTE
    journal_directory: Path | None = None

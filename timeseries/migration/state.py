"""The progress file of a migration, so that it can resume.

The name of the file is a hash of the migration's parameters. The first line has those parameters;
each further line is a chunk that is durable in the destination. A kill can leave an incomplete last
line, which is ignored.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from core.atomic_files import replace_file
from core.errors import ConfigurationError
from timeseries.store import ScanQuery

VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedChunk:
    """A chunk that is in the destination.

    Attributes:
        values: how many field values the source had just before the chunk was read.
        points: how many points were read from the source.
        rejected: how many of them the destination rejected.
    """

    measurement: str
    start_ns: int
    end_ns: int
    values: int
    points: int
    rejected: int


@dataclass(slots=True)
class MigrationState:
    """The progress of a migration: the latest record of each chunk, by measurement and start."""

    chunks: dict[tuple[str, int], MigratedChunk] = field(default_factory=dict)
    points: int = 0
    rejected: int = 0

    def add(self, chunk: MigratedChunk) -> None:
        """Add a chunk, or replace its earlier record."""
        key = chunk.measurement, chunk.start_ns
        before = self.chunks.get(key)
        self.chunks[key] = chunk
        self.points += chunk.points - (before.points if before else 0)
        self.rejected += chunk.rejected - (before.rejected if before else 0)

    def of(self, measurement: str) -> list[MigratedChunk]:
        """Return the chunks of a measurement, oldest first."""
        migrated = (chunk for (name, _), chunk in self.chunks.items() if name == measurement)
        return sorted(migrated, key=lambda chunk: chunk.start_ns)

    def record_of(self, chunk: ScanQuery) -> MigratedChunk | None:
        """Return the record of a chunk, or None."""
        return self.chunks.get((chunk.measurement, chunk.start_ns))


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    version: int


class StateFile:
    """The progress file of one migration.

    Args:
        path: the file; its folder is created if missing.
        key: the parameters of the migration, without secrets; they must match those in the file.
    """

    def __init__(self, path: Path, *, key: str) -> None:
        self.path = path
        self._key = key

    def load(self) -> MigrationState:
        """Return the recorded state; empty without a file.

        Raises:
            ConfigurationError: the file is damaged, or belongs to another migration.
        """
        state = MigrationState()
        try:
            header, *lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return state
        except ValueError as error:
            raise self._error("is empty") from error
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(self.path, self.path.stat().st_size - len(lines.pop()))
        try:
            self._check(msgspec.json.decode(header, type=_Header))
            for line in lines:
                state.add(msgspec.json.decode(line, type=MigratedChunk))
        except msgspec.MsgspecError as error:
            raise self._error(f"can't be read ({error})") from error
        return state

    def append(self, chunk: MigratedChunk) -> None:
        """Record a chunk; it is on disk when this returns."""
        if not self.path.exists():
            replace_file(self.path, _line(_Header(self._key, VERSION)))
        with self.path.open("ab") as file:
            file.write(_line(chunk))
            file.flush()
            os.fsync(file.fileno())

    def delete(self) -> None:
        """Remove the file: the migration is complete."""
        self.path.unlink(missing_ok=True)

    def _check(self, header: _Header) -> None:
        if header.version != VERSION or header.key != self._key:
            raise self._error(f"belongs to another migration: {header.key}")

    def _error(self, reason: str) -> ConfigurationError:
        error = (
            f"the progress file {self.path} {reason}. Use another file with --state, or delete it "
            "to start over: points that the destination already has are not written again"
        )
        return ConfigurationError([error], source="The migration")


def state_key(*, source: str, destination: str, options: Mapping[str, Any]) -> str:
    """Return the parameters that identify a migration; the URLs have no secrets."""
    return json.dumps({"from": source, "to": destination, **options}, sort_keys=True)


def state_path(folder: Path, key: str) -> Path:
    """Return the default path of a progress file."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsonl"


def _line(record: MigratedChunk | _Header) -> bytes:
    return msgspec.json.encode(record) + b"\n"

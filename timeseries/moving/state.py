"""What a migration remembers on disk, so that it goes on where it was stopped.

The file is named by what is moved from where to where. Its first line says which migration it is
of; each further line is a chunk that is durable in the destination, appended when it is. A kill can
leave half of the last line, which then does not count.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from core.errors import ConfigurationError
from timeseries.store import ScanQuery

VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A chunk that is in the destination.

    Attributes:
        values: how many values of fields the source held of it just before it was read.
        points: how many points were read from the source.
        refused: how many of them the destination refused.
    """

    measurement: str
    start_ns: int
    end_ns: int
    values: int
    points: int
    refused: int


@dataclass(slots=True)
class MigrationState:
    """How far a migration has come: its chunks by measurement and start, the latest of each."""

    chunks: dict[tuple[str, int], Moved] = field(default_factory=dict)
    points: int = 0
    refused: int = 0

    def add(self, moved: Moved) -> None:
        """Count a chunk, in place of what is known of it."""
        key = moved.measurement, moved.start_ns
        before = self.chunks.get(key)
        self.chunks[key] = moved
        self.points += moved.points - (before.points if before else 0)
        self.refused += moved.refused - (before.refused if before else 0)

    def of(self, measurement: str) -> list[Moved]:
        """Return the chunks of a measurement, oldest first."""
        found = (moved for (name, _), moved in self.chunks.items() if name == measurement)
        return sorted(found, key=lambda moved: moved.start_ns)

    def known(self, chunk: ScanQuery) -> Moved | None:
        """Return what is known of a chunk."""
        return self.chunks.get((chunk.measurement, chunk.start_ns))


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    version: int


class StateFile:
    """Keeps the state of one migration.

    Args:
        path: the file; its folder is made where it is missing.
        key: what the migration moves, without secrets; a file of another one is refused.
    """

    def __init__(self, path: Path, *, key: str) -> None:
        self.path = path
        self._key = key

    def load(self) -> MigrationState:
        """Return what was recorded, or the state of a migration that has not begun.

        Raises:
            ConfigurationError: the file is damaged, or another migration's.
        """
        state = MigrationState()
        try:
            header, *lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return state
        except ValueError as error:
            raise self._fault("is empty") from error
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(self.path, self.path.stat().st_size - len(lines.pop()))
        try:
            self._check(msgspec.json.decode(header, type=_Header))
            for line in lines:
                state.add(msgspec.json.decode(line, type=Moved))
        except msgspec.MsgspecError as error:
            raise self._fault(f"can't be read ({error})") from error
        return state

    def append(self, moved: Moved) -> None:
        """Record a chunk; when this returns, it has reached the disk."""
        if not self.path.exists():
            self._begin()
        with self.path.open("ab") as file:
            _write(file, moved)

    def forget(self) -> None:
        """Remove the file: the migration is complete."""
        self.path.unlink(missing_ok=True)

    def _begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.part")
        with partial.open("wb") as file:
            _write(file, _Header(self._key, VERSION))
        partial.replace(self.path)

    def _check(self, header: _Header) -> None:
        if header.version != VERSION or header.key != self._key:
            raise self._fault(f"belongs to another migration: {header.key}")

    def _fault(self, what: str) -> ConfigurationError:
        fault = (
            f"the file of progress {self.path} {what}; name another with --state, or delete it "
            "to begin anew: what the destination has already is not written twice"
        )
        return ConfigurationError([fault], source="The migration")


def state_key(*, source: str, destination: str, options: Mapping[str, Any]) -> str:
    """Return the text that tells one migration from another; the places hold no secrets."""
    return json.dumps({"from": source, "to": destination, **options}, sort_keys=True)


def state_path(folder: Path, key: str) -> Path:
    """Return where a migration's state is kept by default."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsonl"


def _write(file: BinaryIO, line: Moved | _Header) -> None:
    file.write(msgspec.json.encode(line) + b"\n")
    file.flush()
    os.fsync(file.fileno())

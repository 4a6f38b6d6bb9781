"""What a migration remembers on disk, so that it goes on where it was stopped.

The file is named by what is moved from where to where. It says for each measurement up to which
instant everything is durable in the destination; it is replaced as a whole, so that a kill leaves
the one before or the one after.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from core.errors import ConfigurationError

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationState:
    """How far a migration has come.

    Attributes:
        key: what is moved, from where to where, as text without secrets.
        done_until_ns: measurement to the instant before which it is moved.
        points: how many points were read from the source.
        refused: how many of them the destination refused.
    """

    key: str
    version: int = VERSION
    done_until_ns: dict[str, int] = field(default_factory=dict)
    points: int = 0
    refused: int = 0

    def after(
        self, measurement: str, until_ns: int, *, points: int, refused: int
    ) -> "MigrationState":
        """Return the state with one more chunk of a measurement moved."""
        return replace(
            self,
            done_until_ns={**self.done_until_ns, measurement: until_ns},
            points=self.points + points,
            refused=self.refused + refused,
        )


class StateFile:
    """Keeps the state of one migration.

    Args:
        path: the file; its folder is made where it is missing.
        key: what the migration moves; a file of another one is refused.
    """

    def __init__(self, path: Path, *, key: str) -> None:
        self.path = path
        self._key = key

    def load(self) -> MigrationState:
        """Return what was saved last, or the state of a migration that has not begun.

        Raises:
            ConfigurationError: the file is damaged, or another migration's.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return MigrationState(key=self._key)
        try:
            state = msgspec.json.decode(data, type=MigrationState)
        except msgspec.MsgspecError as error:
            raise self._fault(f"can't be read ({error})") from error
        if state.version != VERSION or state.key != self._key:
            raise self._fault(f"belongs to another migration: {state.key}")
        return state

    def save(self, state: MigrationState) -> None:
        """Replace the file; when this returns, it has reached the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.part")
        with partial.open("wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def forget(self) -> None:
        """Remove the file: the migration is complete."""
        self.path.unlink(missing_ok=True)

    def _fault(self, what: str) -> ConfigurationError:
        fault = (
            f"the file of progress {self.path} {what}; name another with --state, or delete it "
            "to begin anew: what the destination has already is not written twice"
        )
        return ConfigurationError([fault], source="The migration")


def state_key(*, source: str, destination: str, options: dict[str, Any]) -> str:
    """Return the text that tells one migration from another; the places hold no secrets."""
    return json.dumps({"from": source, "to": destination, **options}, sort_keys=True)


def state_path(folder: Path, key: str) -> Path:
    """Return where a migration's state is kept by default."""
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

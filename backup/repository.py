"""The repository of backups: a folder, a bucket, or another place that restic knows.

restic encrypts everything with the repository's password before it leaves the host, stores equal
parts of all snapshots once, and uploads only what is new.

Source: https://restic.readthedocs.io/en/stable/075_scripting.html.
"""

import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from core.errors import ConfigurationError, NotFoundError, UnavailableError
from core.settings import ServerSettings

log = logging.getLogger(__name__)

ENGINE = "restic"
LATEST = "latest"
_HOST = "vedette"
_POLL_SECONDS = 0.5
_CLOCK_MARGIN = timedelta(hours=1)
# Of restic: a snapshot was made, but some files could not be read.
_INCOMPLETE = 3
# These wait for no lock, which a server that was lost in the middle of a backup has left.
_READING = frozenset({"snapshots", "stats", "restore", "dump"})
_PASSWORD = re.compile(r"(//[^/:@]*:)[^/]*@")
_MISSING = ("unable to open config file", "Is there a repository at")
_WRONG_PASSWORD = "wrong password or no key found"  # noqa: S105 - a message
_MAX_REASON_CHARACTERS = 500


class BackupStoppedError(UnavailableError):
    """The process stops, and the backup with it."""

    default_code = "backup_stopped"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A backup in the repository."""

    ident: str
    at: datetime
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a backup has stored: its snapshot, its size, and how much of it was new."""

    snapshot: str
    total_bytes: int
    added_bytes: int


class Repository:
    """A repository of restic.

    Args:
        url: a folder, `s3://bucket/prefix` with the variables of the AWS tools, or any other
            address that restic knows.
        password_file: the file with the repository's password.
        cache: the folder for copies of the repository's lists; None to do without.
        is_stopping: ends the running command early.

    Attributes:
        place: the address for messages, without a password.

    Raises:
        ConfigurationError: the engine or the password is missing.
    """

    def __init__(
        self,
        url: str,
        password_file: Path | None,
        *,
        cache: Path | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.place = redacted(url)
        self._is_stopping = is_stopping
        problems = _problems(url, password_file)
        if problems:
            raise ConfigurationError(problems, source="The backup")
        self._options = ["--cache-dir", str(cache)] if cache else ["--no-cache"]
        self._environ = {
            **os.environ,
            "RESTIC_REPOSITORY": restic_address(url, os.environ),
            "RESTIC_PASSWORD_FILE": str(password_file),
            "RESTIC_PROGRESS_FPS": "0.016",
        }
        if "AWS_REGION" in os.environ:
            self._environ.setdefault("AWS_DEFAULT_REGION", os.environ["AWS_REGION"])

    @classmethod
    def of(
        cls, settings: ServerSettings, *, is_stopping: Callable[[], bool] = lambda: False
    ) -> "Repository":
        """Return the repository of a server."""
        cache = settings.data_dir / "backup" / "cache"
        return cls(
            settings.backup_url,
            settings.backup_password_file,
            cache=cache,
            is_stopping=is_stopping,
        )

    def prepare(self) -> None:
        """Create the repository if there is none, and remove locks of processes that are gone."""
        try:
            self._run("unlock")
        except NotFoundError:
            self._run("init")

    def store(self, paths: Sequence[Path], *, exclude: Iterable[str] = ()) -> Stored:
        """Store files and folders as a new snapshot.

        Files that are deleted meanwhile are left out.

        Raises:
            UnavailableError: a file can't be read, or the repository can't be written.
        """
        excluded = [option for pattern in exclude for option in ("--exclude", pattern)]
        output = self._run("backup", "--json", "--host", _HOST, *excluded, "--", *map(str, paths))
        summary = next(line for line in _objects(output) if line["message_type"] == "summary")
        return Stored(
            summary["snapshot_id"], summary["total_bytes_processed"], summary["data_added"]
        )

    def snapshots(self) -> list[Snapshot]:
        """Return all backups, the oldest first."""
        listed = json.loads(self._run("snapshots", "--json", "--host", _HOST)) or []
        return [
            Snapshot(entry["short_id"], datetime.fromisoformat(entry["time"]), entry["paths"])
            for entry in listed
        ]

    def snapshot(self, ident: str) -> Snapshot:
        """Return a backup by the beginning of its id, or the latest.

        Raises:
            NotFoundError: there is none.
        """
        snapshots = self.snapshots()
        matching = [
            snapshot
            for snapshot in snapshots
            if ident == LATEST
            or ident.startswith(snapshot.ident)
            or snapshot.ident.startswith(ident)
        ]
        if not matching:
            raise NotFoundError(
                f"There is no backup {ident!r} in {self.place}, which has {len(snapshots)}. "
                "List them: vedette backup list"
            )
        return matching[-1]

    def size_bytes(self, snapshot: Snapshot) -> int:
        """Return the size of a snapshot's files when they are restored."""
        output = self._run("stats", "--json", "--mode", "restore-size", snapshot.ident)
        return int(json.loads(output)["total_size"])

    def restore(self, snapshot: Snapshot, target: Path) -> None:
        """Write the files of a snapshot below a folder; each is compared with its hash."""
        self._run("restore", snapshot.ident, "--target", str(target))

    def read(self, snapshot: Snapshot, path: str) -> bytes:
        """Return the content of a file of a snapshot."""
        return self._run("dump", snapshot.ident, path).encode()

    def forget(self, *, keep_days: int, now: datetime) -> None:
        """Delete what only backups have that are older than so many days before the last one.

        Nothing is deleted if that was made while the clock was ahead: all others would be older.
        """
        if any(snapshot.at > now + _CLOCK_MARGIN for snapshot in self.snapshots()):
            log.warning("a backup is dated in the future, so no old ones are deleted")
            return
        self._run(
            *("forget", "--host", _HOST, "--group-by", "host"),
            *("--keep-within", f"{keep_days}d", "--prune"),
        )

    def check(self) -> None:
        """Check that all parts of the repository are there, and fit together."""
        self._run("check")

    def _run(self, command: str, *arguments: str) -> str:
        options = [*self._options, *(["--no-lock"] if command in _READING else [])]
        argv = [*("nice", "-n", "10", ENGINE, *options), command, *arguments]
        with subprocess.Popen(  # noqa: S603 - our own words
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environ,
        ) as process:
            output, errors = self._wait(process)
        is_partial = process.returncode == _INCOMPLETE and _are_gone(errors)
        if process.returncode and not is_partial:
            raise self._error(command, errors)
        return output

    def _wait(self, process: "subprocess.Popen[str]") -> tuple[str, str]:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_POLL_SECONDS)
            if self._is_stopping():
                process.terminate()
                process.communicate()
                raise BackupStoppedError("The backup was stopped with the server.")

    def _error(self, command: str, errors: str) -> Exception:
        if any(text in errors for text in _MISSING):
            return NotFoundError(f"There is no repository of backups at {self.place}.")
        if _WRONG_PASSWORD in errors:
            return UnavailableError(
                f"The password of the repository {self.place} is another one. Name the file with "
                "the right one: backup_password_file, or --password-file."
            )
        reason = " ".join(errors.split())[-_MAX_REASON_CHARACTERS:]
        return UnavailableError(f"{ENGINE} {command} failed at {self.place}: {reason}")


def redacted(url: str) -> str:
    """Return the address of a repository for messages and logs, without a password."""
    return _PASSWORD.sub(r"\1***@", url)


def restic_address(url: str, environ: "os._Environ[str] | dict[str, str]") -> str:
    """Return restic's address of a repository."""
    if not url.startswith("s3://"):
        return url
    endpoint = environ.get("AWS_ENDPOINT_URL", "https://s3.amazonaws.com").rstrip("/")
    return f"s3:{endpoint}/{url.removeprefix('s3://')}"


def _problems(url: str, password_file: Path | None) -> list[str]:
    problems = []
    if not url:
        problems.append("backup_url is not set: name a folder or s3://bucket/prefix")
    if shutil.which(ENGINE) is None:
        problems.append(f"{ENGINE} is not installed. Run: apt install {ENGINE}")
    if password_file is None:
        problems.append("backup_password_file is not set: the file with the backups' password")
    elif not os.access(password_file, os.R_OK):
        problems.append(
            f"backup_password_file {password_file} can't be read. To make a new one: "
            f"openssl rand -base64 32 > {password_file}. Store a copy elsewhere: without it, no "
            "backup can be restored"
        )
    return problems


def _objects(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _are_gone(errors: str) -> bool:
    """Return whether all files that could not be read were deleted meanwhile."""
    items = [
        line["item"]
        for line in _objects(errors)
        if line.get("message_type") == "error" and line.get("item")
    ]
    return bool(items) and not any(Path(item).exists() for item in items)

"""Folders of attempts: what a canceled job still writes does not keep one from being deleted."""

import os
import shutil
from pathlib import Path

import pytest

from jobqueue.executors.base import ExecutorError
from jobqueue.executors.slurm.workplace import Submission, Workplace

ATTEMPT = "01a21d78-f018-76bb-98d9-a6f8b70efb05"


def write_before_rmdir(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let a job write its exit code just before its folder is deleted, in the first `times`."""
    rmdir = os.rmdir
    left = iter(range(times))

    def late(path: str, *, dir_fd: int | None = None) -> None:
        if next(left, None) is not None:
            (Path(path) / "exit.1").write_text("143", encoding="ascii")
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(shutil.os, "rmdir", late)  # type: ignore[attr-defined]


def stored(tmp_path: Path) -> Workplace:
    place = Workplace(tmp_path)
    place.save(ATTEMPT, Submission())
    return place


def test_a_folder_to_which_its_job_still_writes_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stored(tmp_path)
    write_before_rmdir(monkeypatch, times=2)
    place.remove(ATTEMPT)
    assert not place.of(ATTEMPT).exists()


def test_a_folder_that_never_empties_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stored(tmp_path)
    write_before_rmdir(monkeypatch, times=100)
    with pytest.raises(ExecutorError, match="a job still writes to it"):
        place.remove(ATTEMPT)

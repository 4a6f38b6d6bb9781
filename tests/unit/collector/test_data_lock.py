"""One agent to a data folder."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

from collector.data_dir import LOCK_NAME, lock_data_dir
from collector.errors import AlreadyRunningError


def test_a_second_agent_on_the_same_folder_is_refused_with_the_firsts_process(
    tmp_path: Path,
) -> None:
    with (
        lock_data_dir(tmp_path),
        pytest.raises(AlreadyRunningError, match=rf"process {os.getpid()}\)"),
        lock_data_dir(tmp_path, timeout_seconds=0.3),
    ):
        pytest.fail("both run")


def test_an_agent_that_is_about_to_end_is_starting(tmp_path: Path) -> None:
    first = ExitStack()
    first.enter_context(lock_data_dir(tmp_path))
    ending = Timer(0.5, first.close)
    ending.start()
    with lock_data_dir(tmp_path, timeout_seconds=60):
        ending.join()


def test_the_folder_is_free_when_the_first_has_ended(tmp_path: Path) -> None:
    with lock_data_dir(tmp_path):
        pass
    with lock_data_dir(tmp_path):
        assert (tmp_path / LOCK_NAME).stat().st_mode & 0o777 == 0o600


def test_an_agent_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from collector.data_dir import lock_data_dir\n"
        "with lock_data_dir(Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert ended.returncode == -9
    with lock_data_dir(tmp_path):
        pass


def test_an_unwritable_folder_does_not_stop_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with lock_data_dir(tmp_path / "file"):
        assert "running without a lock" in caplog.text

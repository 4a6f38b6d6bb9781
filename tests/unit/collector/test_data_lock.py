"""One agent to a data folder."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

from collector.data_lock import FILE_NAME, sole_agent
from collector.errors import AlreadyRunningError


def test_a_second_agent_on_the_same_folder_is_refused_with_the_firsts_process(
    tmp_path: Path,
) -> None:
    with (
        sole_agent(tmp_path),
        pytest.raises(AlreadyRunningError, match=rf"process {os.getpid()}\)"),
        sole_agent(tmp_path, wait_seconds=0.3),
    ):
        pytest.fail("both run")


def test_an_agent_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    first = ExitStack()
    first.enter_context(sole_agent(tmp_path))
    ending = Timer(0.5, first.close)
    ending.start()
    with sole_agent(tmp_path, wait_seconds=60):
        ending.join()


def test_the_folder_is_free_when_the_first_has_ended(tmp_path: Path) -> None:
    with sole_agent(tmp_path):
        pass
    with sole_agent(tmp_path):
        assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_an_agent_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from collector.data_lock import sole_agent\n"
        "with sole_agent(Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert ended.returncode == -9
    with sole_agent(tmp_path):
        pass


def test_a_folder_that_takes_no_file_does_not_stop_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with sole_agent(tmp_path / "file"):
        assert "running without a lock" in caplog.text

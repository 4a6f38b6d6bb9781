"""Data folders that only their user can open."""

import logging
import os
from pathlib import Path

import pytest

from core.private_files import make_private
from tests.fixtures.file_modes import no_umask, open_to_others


def test_a_new_folder_is_private_without_a_umask(tmp_path: Path) -> None:
    with no_umask():
        make_private(tmp_path / "data")
    assert open_to_others(tmp_path / "data") == {}


def test_an_open_folder_is_closed_with_all_in_it_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with no_umask():
        (tmp_path / "data" / "logs").mkdir(parents=True)
        (tmp_path / "data" / "logs" / "server.log").write_text("line")
        (tmp_path / "data" / "run.sh").touch(mode=0o755)
    with caplog.at_level(logging.WARNING):
        make_private(tmp_path / "data")

    assert open_to_others(tmp_path / "data") == {}
    assert os.access(tmp_path / "data" / "run.sh", os.X_OK)
    assert "4 paths" in caplog.text


def test_a_private_folder_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_private(tmp_path / "data")
    caplog.clear()
    make_private(tmp_path / "data")
    assert caplog.text == ""


def test_the_target_of_a_link_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")

    make_private(tmp_path / "data")

    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o1777, 0o1755])
def test_a_folder_that_all_users_share_is_refused_and_unchanged(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(mode)

    with pytest.raises(PermissionError, match="folder of its own"):
        make_private(shared)

    assert shared.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("folder", ["/", "/var", "/etc/../var/lib"])
def test_a_folder_of_the_system_is_refused_and_unchanged(folder: str) -> None:
    before = Path(folder).stat().st_mode
    with pytest.raises(PermissionError):
        make_private(Path(folder))
    assert Path(folder).stat().st_mode == before

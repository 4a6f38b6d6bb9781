"""Root's commands on the data of a server leave it to the user that the server runs as."""

import os
import pwd
from pathlib import Path

import pytest

from cli.privileges import acting_as_owner
from tests.servers import require_root

pytestmark = pytest.mark.needs_root


def test_root_acts_as_the_owner_of_a_folder_and_is_root_again_afterwards(tmp_path: Path) -> None:
    require_root("creates files of another user")
    before = os.geteuid(), os.getegid(), os.getgroups()
    nobody, folder = pwd.getpwnam("nobody"), tmp_path / "data"
    folder.mkdir()
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o011)
    with acting_as_owner(folder):
        (folder / "key").write_text("x", "utf-8")
        assert os.geteuid() == nobody.pw_uid
    status = (folder / "key").stat()
    assert (status.st_uid, status.st_gid) == (nobody.pw_uid, nobody.pw_gid)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


def test_a_folder_of_root_or_none_changes_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with acting_as_owner(folder):
            assert os.geteuid() == os.getuid()

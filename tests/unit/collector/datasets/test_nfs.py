"""An NFS export that can't be mounted says why."""

import os
import shutil
from pathlib import Path

import pytest

from collector.datasets.errors import DataError
from collector.datasets.nfs import NFSSource, unmount


def test_an_agent_that_is_not_root_says_to_mount_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DataError, match="Mount nas:/export/a on the appliance"):
        NFSSource("nfs://nas/export/a", tmp_path)


def test_a_host_without_the_helper_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(DataError, match="nfs-common"):
        NFSSource("nfs://nas/export", tmp_path)


def test_a_folder_that_is_not_mounted_is_removed(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    unmount(tmp_path / "left")
    assert list(tmp_path.iterdir()) == []

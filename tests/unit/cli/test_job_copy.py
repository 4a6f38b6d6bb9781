"""Copies out of a job: what a link or a device means is left out, the rest arrives."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.job_copy import _unpack
from core.errors import InvalidInputError


def archive(*members: tuple[str, bytes, str]) -> Iterator[bytes]:
    """A tar archive of members: name, kind and the target of a link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o755
            member.size = 4 if kind == tarfile.REGTYPE else 0
            made.addfile(member, io.BytesIO(b"data"))
    yield file.getvalue()


def test_links_out_of_the_copy_and_devices_are_skipped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _unpack(
        archive(
            ("logs", tarfile.DIRTYPE, ""),
            ("logs/a.log", tarfile.REGTYPE, ""),
            ("logs/latest", tarfile.SYMTYPE, "a.log"),
            ("logs/host", tarfile.SYMTYPE, "/etc/hosts"),
            ("logs/again", tarfile.LNKTYPE, "logs/host"),
            ("logs/up", tarfile.SYMTYPE, "../../out"),
            ("logs/pipe", tarfile.FIFOTYPE, ""),
            ("logs/z.log", tarfile.REGTYPE, ""),
        ),
        tmp_path,
    )
    logs = tmp_path / "logs"
    assert sorted(path.name for path in logs.iterdir()) == ["a.log", "latest", "z.log"]
    assert (logs / "latest").read_bytes() == b"data"
    assert capsys.readouterr().err.splitlines() == [
        "Skipped logs/host: it links to /etc/hosts, which is not in the copy.",
        "Skipped logs/again: it links to logs/host, which is not in the copy.",
        "Skipped logs/up: it links to ../../out, which is not in the copy.",
        "Skipped logs/pipe: it is a device, socket or pipe.",
    ]


def test_a_file_outside_of_the_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="refused"):
        _unpack(archive(("../escape", tarfile.REGTYPE, "")), tmp_path)
    assert not (tmp_path.parent / "escape").exists()

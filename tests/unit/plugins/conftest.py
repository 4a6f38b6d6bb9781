"""Captured `/proc` and `/sys` files, read by the real plugins in place of this host's own."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plugins.base import PluginContext

CAPTURES = Path(__file__).parent / "captures"
FIRST_AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND_AT = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)


class CapturedHost:
    """A host made of captures. Its files change in place, as the kernel's do."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.sys = folder / "sys"
        for path in (self.proc, self.sys):
            path.mkdir()

    @property
    def context(self) -> PluginContext:
        """The context that makes a plugin read this host."""
        return PluginContext(proc=self.proc, sys=self.sys)

    def use(self, capture: str) -> None:
        """Put the files of a captured `proc_...` or `sys_...` folder in place."""
        target = self.sys if capture.startswith("sys_") else self.proc
        shutil.copytree(
            CAPTURES / capture,
            target,
            symlinks=True,
            dirs_exist_ok=True,
            copy_function=shutil.copyfile,
        )

    def read(self, name: str) -> str:
        """Return a file of `/proc`."""
        return (self.proc / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """Change or add a file of `/proc`."""
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        """Change a part of a file of `/proc` that is there once."""
        text = self.read(name)
        assert text.count(old) == 1, f"{old!r} is in {name} {text.count(old)} times"
        self.write(name, text.replace(old, new))


@pytest.fixture
def host(tmp_path: Path) -> CapturedHost:
    return CapturedHost(tmp_path)

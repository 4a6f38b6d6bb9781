"""Captured `/proc` files, read by the real plugins in place of this host's own."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

CAPTURES = Path(__file__).parent / "captures"
FIRST_AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND_AT = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)


@pytest.fixture
def use_capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a function that makes psutil read a captured folder."""

    def use(name: str) -> None:
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(CAPTURES / name))

    return use

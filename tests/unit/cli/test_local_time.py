"""Times of commands: in the time zone of the machine, with its name."""

import time
from collections.abc import Iterator

import pytest

from cli.local_time import local_minutes, local_seconds


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_times_are_local_and_name_the_zone_before_and_after_a_change_of_the_clock() -> None:
    assert local_seconds("2026-11-01T05:30:00+00:00") == "2026-11-01 01:30:00 EDT"
    assert local_minutes("2026-11-01T06:30:00+00:00") == "2026-11-01 01:30 EST"
    assert local_minutes(None) == "-"

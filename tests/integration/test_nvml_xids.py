"""XIDs: events of the driver, each delivered once with the time at which it was seen."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.nvml import NVMLReader, Reading, World, chosen, reading
from tests.fixtures.polling import eventually

UUID = "GPU-00000000-0000-0000-0000-00000000000"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A DGX without events."""
    world = World(tmp_path / "world")
    world.add("scenario dgx")
    return world


@pytest.fixture
def nvml(fake_nvml: Path, world: World) -> Iterator[NVMLReader]:
    """A plugin that has read once, and waits for events since."""
    with reading("nvml", fake_nvml, world.path) as reader:
        reader.read()
        yield reader


def events(nvml: NVMLReader, *, count: int) -> list[Reading]:
    """Read until so many events have come."""
    readings: list[Reading] = []

    def are_there() -> bool:
        readings.extend(nvml.of("gpu_xid"))
        return len(readings) >= count

    eventually(are_there, what=f"{count} events")
    return readings


def test_xid_79_is_delivered_once_with_its_time(nvml: NVMLReader, world: World) -> None:
    before_ns = time.time_ns()
    world.add("xid 1 5 79", "gpu 5 error 15")
    [event] = events(nvml, count=1)
    assert event.tags == {"xid": "79", "gpu": "5", "uuid": f"{UUID}5"}
    assert event.fields == {"events": 1}
    assert before_ns // 1000 <= event.time_ns // 1000 <= time.time_ns() // 1000
    later = [taken for _ in range(3) for taken in nvml.read()]
    assert chosen(later, "gpu_xid") == []
    assert chosen(later, "gpu", gpu="5")[0].fields == {"lost": 1}


def test_events_go_out_before_the_driver_is_asked_for_anything_else(
    nvml: NVMLReader, world: World
) -> None:
    world.add("xid 1 2 48")
    readings: list[Reading] = []

    def has_event() -> bool:
        readings[:] = nvml.read()
        return bool(chosen(readings, "gpu_xid"))

    eventually(has_event, what="the event")
    assert chosen(readings, "gpu") == []
    assert len(chosen(nvml.read(), "gpu")) == 8


def test_equal_events_at_once_stay_apart(nvml: NVMLReader, world: World) -> None:
    world.add("xid 1 0 31", "xid 2 0 31", "xid 3 0 31")
    readings = events(nvml, count=3)
    assert len({event.time_ns for event in readings}) == 3
    assert all(event.tags["xid"] == "31" for event in readings)


def test_a_lost_gpu_does_not_silence_the_events_of_others(nvml: NVMLReader, world: World) -> None:
    world.add("gpu 5 error 15")
    nvml.read()
    world.add("xid 1 1 94")
    [event] = events(nvml, count=1)
    assert (event.tags["gpu"], event.tags["xid"]) == ("1", "94")


def test_events_go_on_after_nvml_was_opened_again(nvml: NVMLReader, world: World) -> None:
    world.add("driver 560.35.03")
    nvml.read()
    world.add("xid 1 1 13")
    [event] = events(nvml, count=1)
    assert event.tags["xid"] == "13"


def test_a_driver_without_events_is_read_all_the_same(fake_nvml: Path, world: World) -> None:
    world.add("refuse nvmlEventSetCreate 3", "xid 1 1 13")
    with reading("nvml", fake_nvml, world.path) as nvml:
        readings = [taken for _ in range(3) for taken in nvml.read()]
    assert chosen(readings, "gpu_xid") == []
    assert len(chosen(readings, "gpu")) == 3 * 8

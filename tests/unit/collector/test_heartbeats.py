"""Heartbeats: what they say the appliance has, and when the first one goes."""

from pathlib import Path

import msgspec
import pytest

from collector.buffering.buffer import DiskBuffer
from collector.heartbeats import GPUProcessCache, Heartbeats, InventoryCache
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from collector.updates import ORDER_NAME, RESULT_NAME, Updates
from core.ids import new_id
from protocol.agent_update import UpdateOrder, UpdateReport, UpdateResult
from protocol.gpu_processes import MAX_GPU_PROCESSES, GPUProcess
from protocol.inventory import Inventory
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal
from tests.unit.collector.hand_clock import HandClock

DGX = Inventory(hostname="dgx-1", cpu_count=224)


class Scene:
    """Heartbeats of an appliance, sent to a recording portal by hand."""

    def __init__(self, folder: Path, portal: RecordingPortal, clock: HandClock) -> None:
        self.memory = InventoryCache(folder)
        self.is_starting = False
        self.executors: list[str] = []
        self.portal = portal
        self._heartbeats = Heartbeats(
            inventory=self.memory.best,
            is_starting=lambda: self.is_starting,
            executors=lambda: self.executors,
            buffer=DiskBuffer(
                folder / "buffer", max_bytes=1_000_000, max_age_seconds=3600, clock=clock
            ),
            clock=clock,
            updates=Updates(folder, folder / "service"),
        )

    def beat(self) -> int:
        """Look once; return how many heartbeats there are now."""
        link = PortalConnection(AccessPoints([self.portal.url]), agent_token=AGENT_TOKEN)
        try:
            self._heartbeats.step(link, interval_seconds=10.0)
        finally:
            link.close()
        return len(self.portal.recording.heartbeats)

    @property
    def last(self) -> Inventory:
        inventory = self.portal.recording.heartbeats[-1].inventory
        assert inventory is not None
        return inventory


@pytest.fixture
def scene(tmp_path: Path, portal: RecordingPortal, hand_clock: HandClock) -> Scene:
    return Scene(tmp_path, portal, hand_clock)


def test_a_heartbeat_has_the_published_inventory_and_the_executors(scene: Scene) -> None:
    scene.memory.update(DGX)
    scene.executors = ["docker"]
    scene.beat()
    assert (scene.last.hostname, scene.last.executors) == ("dgx-1", ["docker"])


def test_heartbeats_are_sent_at_their_interval(scene: Scene, hand_clock: HandClock) -> None:
    scene.memory.update(DGX)
    counts = []
    for _ in range(21):
        counts.append(scene.beat())
        hand_clock.advance(1)
    assert counts[0] == counts[9] == 1
    assert counts[10] == counts[19] == 2
    assert counts[20] == 3


def test_a_change_of_the_executors_is_reported_at_once(scene: Scene, hand_clock: HandClock) -> None:
    scene.memory.update(DGX)
    scene.beat()
    scene.executors = ["docker"]
    hand_clock.advance(1)
    assert scene.beat() == 2


def test_a_clock_that_is_set_back_does_not_stop_heartbeats(
    scene: Scene, hand_clock: HandClock
) -> None:
    scene.memory.update(DGX)
    scene.beat()
    hand_clock.advance(-3600)
    assert scene.beat() == 2


def test_the_first_heartbeat_waits_for_the_first_inventory(scene: Scene) -> None:
    scene.is_starting = True
    assert scene.beat() == 0
    scene.memory.update(DGX)
    scene.is_starting = False
    assert scene.beat() == 1


def test_the_first_heartbeat_waits_no_longer_than_ten_seconds(
    scene: Scene, hand_clock: HandClock
) -> None:
    scene.is_starting = True
    scene.beat()
    hand_clock.advance(9)
    assert scene.beat() == 0
    hand_clock.advance(1)
    assert scene.beat() == 1
    assert scene.last.cpu_count >= 1


def test_an_inventory_survives_a_restart(scene: Scene, tmp_path: Path) -> None:
    scene.memory.update(DGX)
    assert InventoryCache(tmp_path).best() == DGX


def test_a_damaged_inventory_file_is_replaced_by_the_hosts_inventory(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "inventory.json").write_bytes(b'{"hostname": 5')
    assert InventoryCache(tmp_path).best().hostname
    scene.memory.update(DGX)
    assert InventoryCache(tmp_path).best() == DGX


def test_gpu_processes_are_bounded_and_unknown_once_readings_fail() -> None:
    seconds = [0.0]
    cache = GPUProcessCache([], lambda: seconds[0])
    assert cache.current() is None
    processes = [
        GPUProcess(pid=pid, name="", gpu=pid % 2, uuid="", owner="host", memory_bytes=pid)
        for pid in range(MAX_GPU_PROCESSES + 2)
    ]
    cache.update(processes)
    listed = cache.current()
    assert listed is not None
    assert [process.pid for process in listed[:2]] == [2, 4]  # without the two smallest, by GPU
    assert len(listed) == MAX_GPU_PROCESSES
    seconds[0] = 61.0
    assert cache.current() is None


def test_processes_on_gpus_of_two_makers_are_listed_together() -> None:
    seconds = [0.0]
    cache = GPUProcessCache([], lambda: seconds[0])
    nvidia, amd = (
        GPUProcess(pid=pid, name="", gpu=gpu, uuid="", owner="host")
        for pid, gpu in ((5, 0), (4, 1))
    )
    cache.update([nvidia])
    cache.update_amd([amd])
    assert cache.current() == [nvidia, amd]
    cache.update([])
    assert cache.current() == [amd]
    seconds[0] = 40.0
    cache.update([nvidia])
    seconds[0] = 61.0
    assert cache.current() == [nvidia]


def test_an_order_to_update_starts_the_update_service_once(
    scene: Scene, tmp_path: Path, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    order = UpdateOrder(update_id=new_id(), version="1.1.0", requirements_sha256="a" * 64)
    portal.recording.update = order
    scene.beat()
    assert not (tmp_path / ORDER_NAME).exists()  # this host has no update service

    service = tmp_path / "service"
    service.mkdir()
    taken = tmp_path / ORDER_NAME
    taken.mkdir()  # in its way, until the service removes it
    hand_clock.advance(10)
    scene.beat()
    taken.rmdir()
    hand_clock.advance(10)
    scene.beat()
    assert msgspec.json.decode(taken.read_bytes(), type=UpdateOrder) == order
    taken.unlink()
    restarted = Scene(tmp_path, portal, hand_clock)
    restarted.beat()

    assert not taken.exists()
    installing = UpdateReport(update_id=order.update_id, result=UpdateResult.INSTALLING)
    assert portal.recording.heartbeats[-1].update == installing
    failed = UpdateReport(update_id=order.update_id, result=UpdateResult.FAILED, message="why")
    (service / RESULT_NAME).write_bytes(msgspec.json.encode(failed))
    hand_clock.advance(10)
    restarted.beat()
    assert portal.recording.heartbeats[-1].update == failed
    assert [beat.can_update for beat in portal.recording.heartbeats] == [False, *[True] * 4]


def test_a_heartbeat_names_the_access_point_and_that_there_is_no_list_of_them(
    scene: Scene, portal: RecordingPortal
) -> None:
    scene.beat()
    beat = portal.recording.heartbeats[-1]
    assert (beat.access_point, beat.access_points_revision) == (portal.url, "-")


def test_a_move_to_another_access_point_is_reported_at_once(scene: Scene) -> None:
    scene.beat()
    with RecordingPortal() as other:
        scene.portal = other
        assert scene.beat() == 1
        assert other.recording.heartbeats[-1].access_point == other.url

"""Datasets are fetched before their job starts, checked, and stay in the cache."""

import errno
import os
import random
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from collector.datasets.settings import DatasetSettings
from collector.datasets.stager import Stager
from collector.datasets.version_folder import VersionFolder
from collector.errors import PortalRefusedError
from protocol.attempts import DesiredState
from protocol.datasets import PART_BYTES, DatasetOrders, DatasetReport, ManifestFile
from tests.fixtures.data_portal import DataPortal
from tests.fixtures.polling import eventually
from tests.unit.collector.datasets.conftest import Appliance
from tests.unit.collector.hand_clock import HandClock

MIB = 2**20


def content_of(tree: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()
    }


def small_files(count: int = 50) -> dict[str, bytes]:
    chosen = random.Random(1)  # noqa: S311 - repeatable
    return {
        f"train/{number % 7}/{number:05}.jpg": chosen.randbytes(number * 37)
        for number in range(count)
    }


def large_file() -> bytes:
    return random.Random(2).randbytes(PART_BYTES + 3 * MIB + 17)  # noqa: S311 - repeatable


def test_an_upload_arrives_as_it_was_with_its_files_read_only(
    appliance: Appliance, portal: DataPortal
) -> None:
    files = {**small_files(), "weights/model.bin": large_file(), "empty": b""}
    (tree,) = appliance.stage(portal.add("imagenet", files))
    assert content_of(tree) == files
    assert {path.stat().st_mode & 0o777 for path in tree.rglob("*") if path.is_file()} == {0o444}
    assert {path.stat().st_mode & 0o777 for path in tree.rglob("*") if path.is_dir()} == {0o755}


def test_a_second_job_moves_no_bytes_also_after_a_restart(
    appliance: Appliance, portal: DataPortal
) -> None:
    dataset = portal.add("imagenet", small_files())
    appliance.stage(dataset)
    sent_bytes = portal.sent_part_bytes
    appliance.restart()
    appliance.stage(dataset, attempt_id="b")
    assert portal.sent_part_bytes == sent_bytes == dataset.total_bytes


def test_a_portal_that_sends_whole_parts_sends_each_once(
    appliance: Appliance, portal: DataPortal
) -> None:
    portal.answers_ranges = False
    files = {f"{number:02}": bytes([number]) * 6 * MIB for number in range(6)}
    dataset = portal.add("images", files, pack_bytes=9 * MIB)
    (tree,) = appliance.stage(dataset)
    assert content_of(tree) == files
    assert portal.sent_part_bytes == dataset.total_bytes


def test_versions_are_fetched_while_others_are_removed_for_them(
    make_appliance: Callable[..., Appliance], portal: DataPortal
) -> None:
    settings = DatasetSettings(
        cache_max_bytes=5 * MIB, min_free_bytes=0, retry_seconds=60.0, peer_wait_seconds=1.0
    )
    appliance = make_appliance(settings=settings)
    datasets = [
        portal.add(f"v{number}", {"data": random.Random(number).randbytes(2 * MIB)})  # noqa: S311
        for number in range(6)
    ]
    for turn in range(12):
        dataset = datasets[turn * 5 % 6]
        appliance.stager.forget([f"a{turn - 1}"])
        (tree,) = appliance.stage(dataset, attempt_id=f"a{turn}")
        assert (tree / "data").stat().st_size == 2 * MIB
        assert appliance.cache.size_bytes <= 5 * MIB


class OldPortal:
    """Knows no datasets, until it is updated."""

    def __init__(self) -> None:
        self.status, self.requests = 404, 0

    def report_datasets(self, _: DatasetReport) -> None:
        self.requests += 1
        if self.status:
            raise PortalRefusedError("Not Found", http_status=self.status)


def test_an_old_portal_is_asked_seldom_and_logged_once(
    appliance: Appliance, hand_clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stager = Stager(
        appliance.settings,
        appliance.cache,
        connect=appliance.connect,
        identity=appliance.identity,
        monotonic=hand_clock.seconds,
    )
    stager.start()
    eventually(lambda: stager.is_loaded, what="the cache")
    old = OldPortal()
    for _ in range(1200):
        hand_clock.advance(1)
        stager.report_step(old)  # type: ignore[arg-type]
    assert old.requests == 2
    assert len([record for record in caplog.records if "older" in record.message]) == 1
    old.status = 0
    for _ in range(660):
        hand_clock.advance(1)
        stager.report_step(old)  # type: ignore[arg-type]
    assert old.requests > 3, "once it is updated, as often as usual"
    stager.close()


def test_a_damaged_note_of_a_use_does_not_keep_the_cache_from_loading(
    appliance: Appliance, portal: DataPortal
) -> None:
    dataset = portal.add("imagenet", {"a": b"a"})
    appliance.stage(dataset)
    (appliance.folder / "datasets/uses/a").write_bytes(b"\xff\x00\xfe")
    appliance.restart()
    appliance.stage(dataset, attempt_id="b")


def test_pins_that_cannot_be_noted_do_not_fail_the_desired_state(
    appliance: Appliance, portal: DataPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = portal.add("imagenet", {"a": b"a"})
    appliance.stage(dataset)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    appliance.wants(orders=DatasetOrders(pinned=[dataset]))
    assert appliance.cache.versions()["imagenet"].is_pinned


def test_what_jobs_wait_for_comes_before_pins_and_orders_by_hand(
    appliance: Appliance, portal: DataPortal
) -> None:
    by_hand, pinned, first, second = (
        portal.add(name, {"data": bytes([number]) * MIB})
        for number, name in enumerate(("by-hand", "pinned", "first", "second"))
    )
    done: list[str] = []
    appliance.stager.wake = lambda: done.extend(
        version_id
        for version_id in appliance.cache.versions()
        if version_id not in done and appliance.cache.complete(version_id)
    )
    orders = DatasetOrders(prefetch=[first, second, by_hand], awaited=2, pinned=[pinned])
    appliance.stager.set_desired(DesiredState(generation=1, datasets=orders))
    eventually(lambda: len(done) == 4, what="all versions")
    assert done == ["first", "second", "pinned", "by-hand"]
    assert appliance.stager.report().bytes_per_second >= 0


def test_an_order_by_hand_pauses_while_a_job_waits_for_data(
    appliance: Appliance, portal: DataPortal
) -> None:
    by_hand = portal.add("by-hand", {"data": large_file()})
    awaited = portal.add("awaited", {"data": b"x" * MIB})
    appliance.stager.set_desired(
        DesiredState(generation=1, datasets=DatasetOrders(prefetch=[by_hand]))
    )
    eventually(lambda: appliance.stager.is_busy, what="the order by hand")
    orders = DatasetOrders(prefetch=[awaited, by_hand], awaited=1)
    appliance.stager.set_desired(DesiredState(generation=2, datasets=orders))
    for version_id in ("awaited", "by-hand"):
        eventually(partial(appliance.cache.complete, version_id), what=version_id)


def test_files_have_their_modes_whatever_the_umask_and_replace_what_a_kill_left(
    tmp_path: Path,
) -> None:
    content = b"weights"
    file = ManifestFile(path="a/model", size_bytes=7, sha256=sha256(content).digest(), part=0)
    before = os.umask(0o077)
    try:
        for umask in (0o077, 0o022):
            os.umask(umask)
            folder = VersionFolder(tmp_path / f"version-{umask}")
            folder.create()
            left = folder.files / "a" / "model"
            left.parent.mkdir()
            left.write_bytes(b"wei")
            left.chmod(0o444)
            folder.store(file, memoryview(content))
            assert (left.read_bytes(), left.stat().st_mode & 0o777) == (content, 0o444)
    finally:
        os.umask(before)

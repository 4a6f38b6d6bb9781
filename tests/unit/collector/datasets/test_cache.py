"""The cache stays within its bounds, and removes nothing that is in use."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from collector.datasets.cache import Cache
from collector.datasets.errors import DataError, TemporaryDataError
from collector.datasets.settings import DatasetSettings
from protocol.attempts import DesiredState
from protocol.datasets import CopyState, DatasetOrders
from tests.fixtures.data_portal import DataPortal
from tests.fixtures.polling import eventually
from tests.unit.collector.datasets.conftest import Appliance
from tests.unit.collector.datasets.test_staging import content_of, small_files

MIB = 2**20


def files_of(seed: int, size_bytes: int = MIB) -> dict[str, bytes]:
    return {"data": random.Random(seed).randbytes(size_bytes)}  # noqa: S311 - repeatable


@pytest.fixture
def small(make_appliance: Callable[..., Appliance]) -> Appliance:
    """An appliance whose cache has room for two versions of a mebibyte."""
    settings = DatasetSettings(
        cache_max_bytes=2 * MIB + 100_000, min_free_bytes=0, retry_seconds=0.2
    )
    return make_appliance(settings=settings)


def test_what_was_used_least_recently_is_removed_for_others(
    small: Appliance, portal: DataPortal
) -> None:
    for number in (1, 2):
        small.stage(portal.add(f"v{number}", files_of(number)), attempt_id=f"a{number}")
    small.stage(portal.staged("v1"), attempt_id="a3")
    small.stager.forget(["a3"])
    small.stager.forget([])
    small.stage(portal.add("v3", files_of(3)), attempt_id="a4")
    assert set(small.cache.versions()) == {"v1", "v3"}
    assert small.cache.size_bytes <= small.cache.max_bytes


def test_a_version_that_an_attempt_uses_stays_also_after_a_restart(
    small: Appliance, portal: DataPortal
) -> None:
    for number in (1, 2):
        small.stage(portal.add(f"v{number}", files_of(number)), attempt_id=f"a{number}")
    small.restart()
    with pytest.raises(DataError, match="in use or pinned"):
        small.stage(portal.add("v3", files_of(3)), attempt_id="a3")
    assert set(small.cache.versions()) >= {"v1", "v2"}
    small.stager.forget(["a1"])
    small.stage(portal.staged("v3"), attempt_id="a4")
    assert set(small.cache.versions()) == {"v1", "v3"}


def test_a_version_larger_than_the_cache_fails_with_the_setting_to_change(
    small: Appliance, portal: DataPortal
) -> None:
    with pytest.raises(DataError, match="Raise cache_max_bytes"):
        small.stage(portal.add("large", files_of(1, 3 * MIB)))


def test_a_pinned_version_stays_also_after_a_restart(small: Appliance, portal: DataPortal) -> None:
    pinned = portal.add("v1", files_of(1))
    small.stager.set_desired(DesiredState(generation=1, datasets=DatasetOrders(pinned=[pinned])))
    eventually(lambda: small.cache.complete("v1") is not None, what="the pinned version")
    small.stager.set_desired(DesiredState(generation=2, datasets=DatasetOrders(pinned=[pinned])))
    small.restart()
    for number in (2, 3):
        dataset = portal.add(f"v{number}", files_of(number))
        eventually(lambda: small.stager.is_loaded, what="the cache")
        small.stager.set_desired(
            DesiredState(generation=3, datasets=DatasetOrders(pinned=[pinned], prefetch=[dataset]))
        )
        eventually(partial(small.cache.complete, dataset.version_id), what="the prefetch")
    assert set(small.cache.versions()) == {"v1", "v3"}


def test_equal_files_of_two_versions_are_stored_and_fetched_once(
    appliance: Appliance, portal: DataPortal
) -> None:
    files = small_files()
    (first,) = appliance.stage(portal.add("v1", files))
    eventually(lambda: not appliance.stager.is_busy, what="the index of equal files")
    sent_bytes = portal.sent_part_bytes
    (second,) = appliance.stage(portal.add("v2", {**files, "new": b"x"}), attempt_id="b")
    assert portal.sent_part_bytes - sent_bytes <= 1
    name = "train/1/00001.jpg"
    assert (first / name).stat().st_ino == (second / name).stat().st_ino
    appliance.stager.forget([])
    appliance.cache.remove("v1")
    assert content_of(second) == {**files, "new": b"x"}
    assert appliance.cache.size_bytes == sum(map(len, files.values())) + 1


def test_files_before_a_damaged_one_stay_and_count(
    appliance: Appliance, portal: DataPortal
) -> None:
    files = {f"{number:02}": bytes([number]) * 1000 for number in range(50)}
    dataset = portal.add("v1", files)
    (sha256,) = portal.parts
    good = portal.parts[sha256]
    portal.parts[sha256] = good[:40_000] + b"?" + good[40_001:]
    with pytest.raises(DataError, match="fetched twice"):
        appliance.stage(dataset)
    assert appliance.cache.size_bytes == 40_000
    portal.parts[sha256] = good
    (tree,) = appliance.stage(dataset, attempt_id="b")
    assert content_of(tree) == files
    assert appliance.cache.size_bytes == 50_000


def test_a_damaged_version_is_noticed_at_the_start_and_fetched_again(
    appliance: Appliance, portal: DataPortal
) -> None:
    files = small_files()
    dataset = portal.add("v1", files, pack_bytes=5_000)
    (tree,) = appliance.stage(dataset)
    (tree / "train/6/00048.jpg").unlink()
    sent_bytes = portal.sent_part_bytes
    appliance.restart()
    (tree,) = appliance.stage(dataset)
    assert content_of(tree) == files
    assert 0 < portal.sent_part_bytes - sent_bytes < 10_000


def test_after_a_crash_of_the_host_what_is_damaged_is_fetched_again(
    appliance: Appliance, portal: DataPortal
) -> None:
    files = small_files()
    dataset = portal.add("v1", files, pack_bytes=5_000)
    (tree,) = appliance.stage(dataset)
    folder = tree.parent
    for name in ("train/6/00048.jpg", "train/5/00047.jpg"):
        (tree / name).chmod(0o600)
        (tree / name).write_bytes(bytes((tree / name).stat().st_size))
    (folder / "complete.json").unlink()
    (folder / "boot").write_text("another boot")
    appliance.restart()
    (tree,) = appliance.stage(dataset)
    assert content_of(tree) == files


def test_what_is_being_removed_when_the_agent_is_killed_is_gone_after_the_start(
    tmp_path: Path,
) -> None:
    cache = Cache(tmp_path, max_bytes=MIB, min_free_bytes=0, now_ns=lambda: 1)
    cache.load()
    (tmp_path / "trash" / "v1-x" / "files").mkdir(parents=True)
    cache.load()
    assert list((tmp_path / "trash").iterdir()) == []


def test_a_version_that_is_being_fetched_is_not_removed_for_another(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=MIB, min_free_bytes=0, now_ns=lambda: 1)
    cache.load()
    for version_id in ("v1", "v2"):
        cache.open(version_id)
    cache.reserve("v1", MIB, name="imagenet")
    with pytest.raises(DataError, match="than there is room for"):
        cache.reserve("v2", MIB, name="coco")
    assert set(cache.versions()) == {"v1", "v2"}
    cache.add_written("v1", MIB)
    cache.release("v1")
    cache.reserve("v2", MIB, name="coco")
    assert set(cache.versions()) == {"v2"}


def test_what_earlier_jobs_wait_for_is_not_removed_for_later_ones(tmp_path: Path) -> None:
    clock = iter(range(1, 100))
    cache = Cache(tmp_path, max_bytes=2 * MIB, min_free_bytes=0, now_ns=lambda: next(clock))
    cache.load()

    def fetch(version_id: str) -> None:
        cache.open(version_id)
        cache.reserve(version_id, MIB, name=version_id)
        cache.add_written(version_id, MIB)
        cache.release(version_id)

    for version_id in ("first", "old"):
        fetch(version_id)
    cache.set_order(["first", "second", "third"])
    fetch("second")
    assert set(cache.versions()) == {"first", "second"}
    with pytest.raises(TemporaryDataError, match=r"2 MiB of the cache are in use"):
        fetch("third")
    cache.release("third")
    cache.remove("third")
    # An attempt takes what it needs, the last of the queue first.
    fetch("of-an-attempt")
    assert set(cache.versions()) == {"first", "of-an-attempt"}


def test_a_pin_does_not_remove_what_a_job_waits_for_and_an_attempt_does(
    small: Appliance, portal: DataPortal
) -> None:
    awaited, pinned, by_hand = (
        portal.add(name, files_of(number, size_bytes))
        for number, (name, size_bytes) in enumerate(
            {"awaited": MIB, "pinned": MIB + 200_000, "by-hand": MIB + 200_000}.items()
        )
    )
    orders = DatasetOrders(prefetch=[awaited, by_hand], awaited=1, pinned=[pinned])
    eventually(lambda: small.stager.is_loaded, what="the cache")
    small.stager.set_desired(DesiredState(generation=1, datasets=orders))

    def failed() -> set[str]:
        copies = small.stager.report().copies
        return {copy.version_id for copy in copies if copy.state is CopyState.FAILED}

    eventually(lambda: failed() == {"pinned", "by-hand"}, what="the orders without room")
    assert small.cache.complete("awaited") is not None
    # The attempt of a version that is ordered by hand, too, comes before all orders.
    small.wants(by_hand, orders=orders)
    eventually(lambda: small.stager.trees("a", [by_hand]), what="the data of the attempt")
    assert small.cache.complete("awaited") is None


def test_what_must_stay_free_on_the_disk_is_no_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=2**62, min_free_bytes=2**61, now_ns=lambda: 1)
    cache.load()
    cache.open("v1")
    with pytest.raises(DataError, match="Free space on the disk") as caught:
        cache.reserve("v1", 1, name="imagenet")
    assert not isinstance(caught.value, TemporaryDataError)


def test_an_order_that_fails_is_reported_and_tried_again_later(
    make_appliance: Callable[..., Appliance], portal: DataPortal
) -> None:
    appliance = make_appliance(
        settings=DatasetSettings(cache_max_bytes=MIB, min_free_bytes=0, retry_seconds=0.2)
    )
    dataset = portal.add("large", files_of(1, 3 * MIB))
    appliance.stager.set_desired(
        DesiredState(generation=1, datasets=DatasetOrders(prefetch=[dataset]))
    )

    def failed() -> bool:
        return [copy.state for copy in appliance.stager.report().copies] == [CopyState.FAILED]

    eventually(failed, what="the failure")
    assert "Raise cache_max_bytes" in appliance.stager.report().copies[0].message

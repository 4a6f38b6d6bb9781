"""The disk of the cache is really full: the job fails with words, and the next one works."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.datasets.errors import DataError
from collector.datasets.settings import DatasetSettings
from tests.fixtures.data_portal import DataPortal, data_portal
from tests.servers import require_program, require_root
from tests.unit.collector.datasets.conftest import GIB, Appliance

pytestmark = pytest.mark.needs_root

MIB = 2**20


@pytest.fixture
def portal() -> Iterator[DataPortal]:
    with data_portal() as running:
        yield running


@pytest.fixture
def appliance(tmp_path: Path, portal: DataPortal) -> Iterator[Appliance]:
    """An appliance whose cache is on a file system of 16 MiB."""
    require_root("mounts a file system")
    disk = tmp_path / "dgx-1"
    disk.mkdir()
    mount = require_program("mount", package="mount")
    unmount = require_program("umount", package="mount")
    subprocess.run([mount, "-t", "tmpfs", "-o", "size=16M", "tmpfs", disk], check=True)
    settings = DatasetSettings(cache_max_bytes=GIB, min_free_bytes=0, retry_seconds=5.0)
    appliance = Appliance(disk, portal, settings=settings)
    yield appliance
    appliance.stager.close()
    subprocess.run([unmount, "--lazy", disk], check=True)


def test_a_disk_that_fills_up_fails_the_job_and_the_next_one_works(
    appliance: Appliance, portal: DataPortal
) -> None:
    files = {f"{number:02}": bytes([number]) * MIB for number in range(10)}
    dataset = portal.add("images", files, pack_bytes=MIB)
    portal.delay_seconds = 0.3
    appliance.wants(dataset)
    filler = appliance.folder / "filler"

    def fill_while_it_is_fetched() -> None:
        while not appliance.stager.trees("a", [dataset]):
            time.sleep(0.05)
            if not filler.exists() and list(appliance.folder.glob("datasets/versions/*/files/*")):
                filler.write_bytes(bytes(10 * MIB - 200_000))

    with pytest.raises(DataError, match=r"is full\. Free space there"):
        fill_while_it_is_fetched()
    filler.unlink()
    portal.delay_seconds = 0.0
    (tree,) = appliance.stage(dataset, attempt_id="b")
    assert len(list(tree.iterdir())) == 10


def test_a_disk_without_room_fails_the_job_before_it_is_full(
    appliance: Appliance, portal: DataPortal
) -> None:
    dataset = portal.add("images", {"a": bytes(20 * MIB)})
    with pytest.raises(DataError, match="Free space on the disk"):
        appliance.stage(dataset)
    assert portal.sent_part_bytes == 0

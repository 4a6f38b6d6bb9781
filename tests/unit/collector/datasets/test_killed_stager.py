"""An agent that is killed while it fetches: nothing is corrupt, and it goes on where it was."""

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from protocol.datasets import PART_BYTES, StagedDataset
from tests.fixtures.data_portal import DataPortal
from tests.unit.collector.datasets.test_staging import content_of

MIB = 2**20
COMMAND = [sys.executable, "-m", "tests.fixtures.killed_stager"]


def run_for(seconds: float | None, folder: Path, portal: DataPortal, dataset: StagedDataset) -> str:
    """Run the stager, and kill it after so many seconds; return the tree once it is done."""
    with subprocess.Popen(
        [*COMMAND, str(folder), portal.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        with suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(msgspec.json.encode(dataset), timeout=seconds)
            return output.decode().strip()
        process.kill()
    return ""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_killed_agent_loses_no_more_than_what_was_under_way(
    tmp_path: Path, portal: DataPortal, kills: int
) -> None:
    chosen = random.Random(kills)  # noqa: S311 - repeatable
    small = {f"{number:04}": chosen.randbytes(chosen.randrange(60_000)) for number in range(600)}
    dataset = portal.add("small", small, pack_bytes=300_000)
    large = portal.add("large", {"model.bin": chosen.randbytes(PART_BYTES + 30 * MIB)})
    portal.delay_seconds = 0.1
    for version, files_bytes in ((dataset, dataset.total_bytes), (large, large.total_bytes)):
        portal.sent_part_bytes = killed = 0
        folder = tmp_path / version.version_id
        for _ in range(kills):
            if run_for(chosen.uniform(0.6, 2.5), folder, portal, version):
                break
            killed += 1
            time.sleep(0.1)
        tree = run_for(None, folder, portal, version)
        assert portal.sent_part_bytes <= files_bytes + killed * PART_BYTES
        if version is dataset:
            assert content_of(Path(tree)) == small
        else:
            assert (Path(tree) / "model.bin").stat().st_size == large.total_bytes

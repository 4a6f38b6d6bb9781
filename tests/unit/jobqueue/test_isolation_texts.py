"""The table of isolation in the documentation is that of the code."""

from pathlib import Path

from jobqueue.partitions.isolation import ISOLATION, MODE_NAMES
from protocol.gpu_slices import PartitionMode

PAGE = Path(__file__).parents[3] / "docs/gpu-slices.md"


def test_the_documented_isolation_is_that_of_the_code() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    for mode, row in ISOLATION.items():
        if mode is not PartitionMode.WHOLE:
            cells = (MODE_NAMES[mode], row.memory, row.faults, row.bandwidth, row.metrics)
            assert f"| {' | '.join(cells)} |" in lines

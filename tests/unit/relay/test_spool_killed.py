"""kill -9 at every step that the spool takes on the disk loses nothing that was acknowledged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import killed_spool
from tests.fixtures.killed_buffer import number_of
from tests.fixtures.killed_spool import GROUP, open_spool, write_of

ROOT = Path(__file__).parents[3]
# In the gate, `test_spool.py` opens spools with torn writes, lost cursors and damage.
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Every run with the step at which it was killed."""
    folder = tmp_path_factory.mktemp("killed")
    results = folder / "results.json"
    subprocess.run(
        [sys.executable, killed_spool.__file__, str(folder), str(results)],
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    return json.loads(results.read_text())  # type: ignore[no-any-return] # our own file


def numbers(run: dict[str, object], word: str) -> set[int]:
    lines = run["told"]
    assert isinstance(lines, list)
    split = [line.split() for line in lines]
    return {int(number) for first, *values in split if first == word for number in values}


def survivors(folder: str) -> list[bytes]:
    """Read the spool that a run left, as the relay that starts after it does."""
    spool = open_spool(Path(folder))
    bodies: list[bytes] = []
    is_end = False
    while not is_end:
        entries, is_end = spool.read(max_writes=GROUP, max_bytes=2**20)
        bodies += [entry.write.body for entry in entries]
        spool.acknowledge(entries)
    assert spool.level().waiting_bytes == 0
    spool.close()
    return bodies


def test_nothing_is_lost_and_all_comes_in_order(runs: list[dict[str, object]]) -> None:
    assert not runs[0]["was_killed"]
    assert len(runs) > 60
    assert all(run["was_killed"] for run in runs[1:])
    for run in runs:
        bodies = survivors(str(run["folder"]))
        survived = [number_of(body) for body in bodies]
        assert survived == sorted(set(survived)), run["folder"]
        delivered = numbers(run, "acknowledged")
        on_its_way = numbers(run, "acknowledging") | numbers(run, "appending")
        appended = numbers(run, "appended")
        assert appended - delivered <= set(survived) | numbers(run, "acknowledging"), run["folder"]
        assert set(survived) <= (appended | on_its_way) - delivered, run["folder"]
        assert all(body == write_of(number_of(body)).body for body in bodies)
        assert survivors(str(run["folder"])) == []

"""kill -9 at every step that the buffer takes on the disk loses nothing and doubles nothing."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fixtures import killed_buffer
from tests.fixtures.killed_buffer import Clock, number_of, open_buffer, text_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Every run with the step at which it was killed."""
    folder = tmp_path_factory.mktemp("killed")
    results = folder / "results.json"
    subprocess.run(
        [sys.executable, killed_buffer.__file__, str(folder), str(results)],
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    return json.loads(results.read_text())  # type: ignore[no-any-return] # our own file


def numbers(run: dict[str, object], word: str) -> list[int]:
    lines_out = run["told"]
    assert isinstance(lines_out, list)
    lines = [line.split() for line in lines_out]
    return [int(number) for first, *values in lines if first == word for number in values]


def survivors(run: dict[str, object]) -> list[bytes]:
    """Drain the buffer that a run left; a minute later all of it may go."""
    clock = Clock()
    buffer = open_buffer(Path(str(run["folder"])), clock)
    payloads: list[bytes] = []
    while buffer.points:
        clock.now += timedelta(seconds=2)
        batch = buffer.read()
        if batch is not None:
            payloads += [frame.payload for frame in batch.frames]
            buffer.acknowledge(batch)
    buffer.close()
    return payloads


def test_the_runs_are_killed_at_every_step(runs: list[dict[str, object]]) -> None:
    assert not runs[0]["was_killed"]
    assert len(runs) > 90
    assert all(run["was_killed"] for run in runs[1:])


def test_all_that_was_appended_is_read_back_and_nothing_that_arrived_comes_twice(
    runs: list[dict[str, object]],
) -> None:
    for run in runs:
        appended = set(numbers(run, "appended"))
        acknowledged = set(numbers(run, "acknowledged"))
        on_its_way = set(numbers(run, "acknowledging")) - acknowledged
        payloads = survivors(run)
        survived = [number_of(payload) for payload in payloads]
        assert len(survived) == len(set(survived)), run["folder"]
        # The frame that was being appended may be there too.
        begun = appended | {max(appended, default=-1) + 1}
        assert appended - acknowledged - on_its_way <= set(survived) <= begun, run["folder"]
        assert not acknowledged & set(survived), run["folder"]
        assert all(payload == text_of(number_of(payload)) for payload in payloads)


def test_frames_acknowledged_after_a_kill_are_deleted_from_disk(
    runs: list[dict[str, object]],
) -> None:
    for run in runs:
        survivors(run)
        assert survivors(run) == []

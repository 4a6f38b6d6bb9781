"""Simulations: recordings, their figures, scenarios, and `vedette simulate --jobs`."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from cli.simulate import simulate as command
from core.errors import InvalidInputError
from core.strict_json import decode_json
from jobqueue.simulation.recording import (
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    RecordedProject,
    Recording,
    add_appliances,
    read_recording,
    write_recording,
)
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import Results, entitlements, figures
from jobqueue.simulation.scenarios import Changes, scenarios

GIB = 1024**3


def a_job(at: float, run: float, gpus: int = 4, **fields: Any) -> RecordedJob:  # noqa: ANN401 - of a job
    return RecordedJob(submitted_seconds=at, run_seconds=run, gpus=gpus, **fields)


def four_gpus(*jobs: RecordedJob, **fields: Any) -> Recording:  # noqa: ANN401 - of a recording
    h100 = RecordedGPU(model="H100", memory_bytes=80 * GIB)
    only = RecordedAppliance(name="dgx-01", cpus=64, memory_bytes=512 * GIB, gpus=(h100,) * 4)
    return Recording(appliances=[only], jobs=list(jobs), **fields)


def figures_of(recording: Recording) -> Results:
    return figures(recording, Replay(recording, lambda _part: None).run())


def test_figures_follow_from_when_jobs_ran() -> None:
    recording = four_gpus(
        a_job(0, 100),
        a_job(0, 100, project=1),
        a_job(200, 10, gpus=0, project=1),
        a_job(200, 10, gpus=8),
        watts_by_model={"H100": 500.0},
    )
    results = figures_of(recording)
    # 800 GPU seconds of 4 GPUs for 200 s, none of them free while a job waited.
    assert (results.allocated_ratio, results.blocked_ratio) == (1.0, 0.0)
    assert (results.impossible, results.seconds) == (1, 210.0)
    assert results.waits.wait_seconds_p50 == 0.0
    # The three waits are 0, 0 and 100 s.
    assert results.waits.wait_seconds_p95 == pytest.approx(90.0)
    assert results.energy_kilowatt_hours == pytest.approx(800 * 500 / 3.6e6, abs=1e-3)
    assert [project.served_ratio for project in results.projects] == [0.5, 0.5]
    assert [size.size for size in results.sizes] == ["no GPU", "2 to 4 GPUs", "5 to 8 GPUs"]
    assert sum(results.allocated_over_time) / 200 == pytest.approx(200 / 210, abs=1e-3)


def test_free_gpus_are_blocked_while_jobs_wait_that_do_not_fit() -> None:
    results = figures_of(four_gpus(a_job(0, 100, 3), a_job(0, 50, 2), a_job(100, 1, 1)))
    # One of four GPUs was free for 100 s.
    assert (results.allocated_ratio, results.blocked_ratio) == (0.75, 0.25)


def test_energy_is_unknown_where_the_power_of_a_model_is() -> None:
    results = figures_of(four_gpus(a_job(0, 10), a_job(1, 10)))
    assert (results.energy_kilowatt_hours, results.unknown_power) == (None, ["H100"])


def test_what_a_project_does_not_ask_for_is_divided_by_the_shares_of_the_others() -> None:
    shares = {1: 1.0, 2: 1.0, 3: 3.0}
    assert entitlements({1: 10.0, 2: 90.0, 3: 900.0}, shares, 90.0) == {1: 10.0, 2: 20.0, 3: 60.0}


def test_a_displaced_job_runs_again_from_its_beginning_behind_the_other() -> None:
    recording = four_gpus(
        a_job(0, 100, is_preemptible=True),
        a_job(30, 20),
        rules=QueueRules(allows_preemption=True),
    )
    timeline = Replay(recording, lambda _part: None).run()
    assert timeline.starts.tolist() == [50.0, 30.0]
    assert timeline.ends.tolist() == [150.0, 50.0]
    results = figures(recording, timeline)
    assert (results.preemptions, results.preempted_gpu_hours) == (1, round(30 * 4 / 3600, 3))


def test_a_cap_holds_jobs_of_its_user_and_lets_others_pass() -> None:
    recording = four_gpus(
        *(a_job(0, 10, 1, user=1) for _ in range(3)),
        a_job(0, 10, 1, user=2),
        rules=QueueRules(max_gpus_per_user=1),
    )
    assert Replay(recording, lambda _part: None).run().starts.tolist() == [0.0, 10.0, 20.0, 0.0]


def test_the_project_with_the_least_usage_for_its_shares_comes_first() -> None:
    jobs = [a_job(0, 100, project=1), *(a_job(1, 100, project=number) for number in (1, 2, 3))]
    rules = QueueRules(order="project_shares")
    timeline = Replay(
        four_gpus(*jobs, rules=rules, projects=[RecordedProject(project=3, shares=2)]),
        lambda _part: None,
    ).run()
    # Projects 2 and 3 have used nothing; the tie goes to the first in the queue.
    assert timeline.starts.tolist() == [0.0, 300.0, 100.0, 200.0]


def test_a_job_ends_at_its_time_limit() -> None:
    recording = four_gpus(a_job(0, 100, time_limit_seconds=60))
    assert Replay(recording, lambda _part: None).run().ends.tolist() == [60.0]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = four_gpus(
        a_job(0, 5, gpu_models=("H100",)), projects=[RecordedProject(project=1, shares=3)]
    )
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"".join(write_recording(recording)))
    assert read_recording(path) == recording
    path.write_bytes(path.read_bytes() + b'{"submitted_seconds": -1, "run_seconds": 2}\n{"a": 1}\n')
    with pytest.raises(InvalidInputError) as caught:
        read_recording(path)
    assert "line 3: Expected `float` >= 0.0 - at `$.submitted_seconds`" in caught.value.message
    assert "line 4" in caught.value.message
    path.write_text('{"format": "other", "appliances": []}\n')
    with pytest.raises(InvalidInputError, match="this version reads"):
        read_recording(path)


def test_scenarios_are_named_by_what_differs_from_today() -> None:
    changes = Changes(policies=("best_fit", "spread"), added=("2xdgx-01",))
    listed = scenarios(four_gpus(a_job(0, 5)), changes)
    assert [scenario.name for scenario in listed] == [
        "today",
        "best_fit, 2 more appliances",
        "spread, 2 more appliances",
    ]
    assert [len(scenario.recording.appliances) for scenario in listed] == [1, 3, 3]
    for wanted in ("dgx-01", "0xdgx-01", "2xdgx-02"):
        with pytest.raises(InvalidInputError, match="dgx-01"):
            scenarios(four_gpus(a_job(0, 5)), Changes(added=(wanted,)))
    with pytest.raises(InvalidInputError, match="no jobs to replay"):
        scenarios(four_gpus(), changes)


def test_the_command_shows_today_beside_the_changes(tmp_path: Path) -> None:
    recording = four_gpus(a_job(0, 600), a_job(0, 600, project=1))
    path, drawn = tmp_path / "jobs.jsonl", tmp_path / "waits.svg"
    path.write_bytes(b"".join(write_recording(recording)))
    arguments = ["--jobs", str(path), "--add", "1xdgx-01", "--picture", str(drawn)]
    table = CliRunner().invoke(command, arguments, catch_exceptions=False).stdout
    rows = [line.split() for line in table.splitlines()]
    assert ["1", "today", "1", "10m00s", "10m00s"] in rows
    answer = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    document: dict[str, Any] = decode_json(answer.stdout.encode())
    names = [scenario["scenario"] for scenario in document["scenarios"]]
    assert names == ["today", "1 more appliance"]
    waits = [scenario["waits"]["wait_seconds_p95"] for scenario in document["scenarios"]]
    assert waits == [570.0, 0.0]
    texts = [text.text for text in ET.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - our own
    assert texts[-2:] == names


def test_the_times_of_a_public_trace_are_replayed(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,2,P100\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
        "pod-0,1000,1,2,1000,100,160,110.0\npod-1,1000,1,1,500,120,,130\n"
        "pod-2,1000,1,1,500,120,130,\n"
    )
    arguments = ["--nodes", str(nodes), "--pods", str(pods), "--replay", "--json"]
    answer = CliRunner().invoke(command, arguments, catch_exceptions=False)
    document: dict[str, Any] = decode_json(answer.stdout.encode())
    [today] = document["scenarios"]
    # The first runs 50 s; the second, to the end of the trace, waits for it.
    assert (today["jobs"], today["seconds"]) == (2, 80.0)


@pytest.mark.parametrize(
    "header", [b'{"format":"\xff"}', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(header)
    with pytest.raises(InvalidInputError, match="is no recording"):
        read_recording(path)


def test_a_recording_with_an_unknown_order_is_refused() -> None:
    appliance = RecordedAppliance(name="dgx-01", cpus=8, memory_bytes=2**30)
    recording = Recording(
        appliances=[appliance],
        rules=QueueRules(order="lottery"),
        jobs=[RecordedJob(submitted_seconds=0, run_seconds=1)],
    )
    with pytest.raises(InvalidInputError, match="Unknown order 'lottery'"):
        scenarios(recording, Changes())


def test_appliances_that_are_added_twice_have_names_of_their_own() -> None:
    recording = Recording(appliances=[RecordedAppliance(name="a", cpus=8, memory_bytes=2**30)])
    recording.appliances = add_appliances(recording, "2xa")
    listed = add_appliances(recording, "1xa")
    assert [appliance.name for appliance in listed] == ["a", "a+1", "a+2", "a+3"]

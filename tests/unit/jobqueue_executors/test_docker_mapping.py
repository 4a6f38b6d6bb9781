"""What Docker is asked for, and what its answers mean; the JSON is that of a 20.10 engine."""

from typing import Any

import pytest

from jobqueue.executors.base import AttemptSpec, ObservedState
from jobqueue.executors.docker_mapping import (
    container_options,
    engine_time_ns,
    observe_container,
    pull_fault,
    start_fault,
    usage_between,
)

SPEC = AttemptSpec(
    attempt_id="a",
    job_id="j",
    name="train",
    image="train:1",
    command=["python", "train.py", "; rm -rf /"],
    env={"EPOCHS": "3"},
    gpu_uuids=["GPU-1", "MIG-2"],
    cpus=1.5,
    memory_bytes=2**30,
)
NEVER = "0001-01-01T00:00:00Z"


def inspected(status: str, *, restart: str = "no", **state: object) -> dict[str, Any]:
    return {
        "State": {
            "Status": status,
            "ExitCode": 0,
            "OOMKilled": False,
            "StartedAt": "2026-11-21T11:58:29.372998608Z",
            "FinishedAt": NEVER,
            **state,
        },
        "HostConfig": {"RestartPolicy": {"Name": restart}, "Memory": 2**30},
    }


def test_the_container_gets_what_the_attempt_asks_for() -> None:
    options = container_options(SPEC)
    assert options["nano_cpus"] == 1_500_000_000
    assert options["mem_limit"] == 2**30
    assert options["labels"] == {"io.vedette.attempt": "a", "io.vedette.job": "j"}
    assert options["environment"]["EPOCHS"] == "3"
    assert "restart_policy" not in options


def test_the_command_is_a_vector_that_no_shell_sees() -> None:
    assert container_options(SPEC)["command"] == ["python", "train.py", "; rm -rf /"]


def test_an_empty_command_leaves_the_images_own() -> None:
    assert (
        container_options(AttemptSpec(attempt_id="a", job_id="j", name="n", image="i"))["command"]
        is None
    )


def test_gpus_are_given_by_uuid() -> None:
    options = container_options(SPEC)
    [request] = options["device_requests"]
    assert request["DeviceIDs"] == ["GPU-1", "MIG-2"]
    assert request["Capabilities"] == [["gpu"]]
    assert options["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,MIG-2"


def test_a_job_without_gpus_sees_none() -> None:
    options = container_options(AttemptSpec(attempt_id="a", job_id="j", name="n", image="i"))
    assert "device_requests" not in options
    assert options["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_service_is_restarted_by_the_engine() -> None:
    spec = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i", is_service=True)
    assert container_options(spec)["restart_policy"] == {"Name": "unless-stopped"}


@pytest.mark.parametrize(
    ("description", "is_stop_asked", "state", "reason"),
    [
        (inspected("created", StartedAt=NEVER), False, ObservedState.STARTING, ""),
        (inspected("running"), False, ObservedState.RUNNING, ""),
        (inspected("paused"), False, ObservedState.RUNNING, ""),
        (inspected("restarting", ExitCode=1), False, ObservedState.RUNNING, ""),
        (inspected("exited"), False, ObservedState.SUCCEEDED, ""),
        (inspected("exited", ExitCode=3), False, ObservedState.FAILED, "exit_code"),
        (
            inspected("exited", ExitCode=137, OOMKilled=True),
            False,
            ObservedState.FAILED,
            "out_of_memory",
        ),
        (inspected("exited", ExitCode=137), True, ObservedState.STOPPED, "stopped_by_user"),
        (inspected("exited", ExitCode=0), True, ObservedState.STOPPED, "stopped_by_user"),
        (
            inspected("exited", restart="unless-stopped"),
            False,
            ObservedState.STOPPED,
            "stopped_outside",
        ),
        (inspected("dead", ExitCode=1), False, ObservedState.FAILED, "exit_code"),
    ],
)
def test_each_state_of_a_container_means_one_thing(
    description: dict[str, Any],
    is_stop_asked: bool,  # noqa: FBT001 - a column of the table
    state: ObservedState,
    reason: str,
) -> None:
    seen = observe_container("a", description, is_stop_asked=is_stop_asked)
    assert (seen.state, seen.reason) == (state, reason)


def test_the_engines_time_is_exact_to_the_nanosecond() -> None:
    assert engine_time_ns("2026-11-21T11:58:29.372998608Z") == 1_795_262_309_372_998_608
    assert engine_time_ns("2026-11-21T11:58:29Z") == 1_795_262_309_000_000_000
    assert engine_time_ns(NEVER) is None


def stats(read: str, cpu_ns: int, *, usage: int = 50_000_000, **details: int) -> dict[str, Any]:
    return {
        "read": read,
        "cpu_stats": {"cpu_usage": {"total_usage": cpu_ns}},
        "memory_stats": {"usage": usage, "stats": details},
    }


def test_cpu_use_is_that_between_two_readings() -> None:
    first = stats("2026-11-21T11:58:29Z", 1_000_000_000)
    second = stats("2026-11-21T11:58:39Z", 16_000_000_000)
    usage = usage_between(second, first, started_at_ns=0)
    assert usage is not None
    assert usage.cpu_percent == 150  # 15 s of CPU in 10 s


def test_the_first_reading_gives_the_use_since_the_start() -> None:
    started_at_ns = engine_time_ns("2026-11-21T11:58:29Z") or 0
    reading = stats("2026-11-21T11:58:39Z", 5_000_000_000)
    usage = usage_between(reading, None, started_at_ns=started_at_ns)
    assert usage is not None
    assert usage.cpu_percent == 50


@pytest.mark.parametrize("name", ["inactive_file", "total_inactive_file"])
def test_page_cache_that_can_be_dropped_is_not_counted(name: str) -> None:
    reading = stats("2026-11-21T11:58:39Z", 0, usage=50_000_000, **{name: 20_000_000})
    usage = usage_between(reading, None, started_at_ns=0)
    assert usage is not None
    assert usage.memory_bytes == 30_000_000


def test_a_container_that_just_ended_has_no_use() -> None:
    reading = {"read": NEVER, "cpu_stats": {}, "memory_stats": {}}
    assert usage_between(reading, None, started_at_ns=0) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("manifest unknown", "image_not_found"),
        ("pull access denied for x, repository does not exist", "image_not_found"),
        ("dial tcp: lookup registry-1.docker.io: no such host", "start_failed"),
        ("toomanyrequests: You have reached your pull rate limit", "start_failed"),
    ],
)
def test_a_pull_that_failed_says_whether_the_image_exists(message: str, reason: str) -> None:
    assert pull_fault("train:1", message)[0] == reason
    assert "'train:1'" in pull_fault("train:1", message)[1]


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            "NVIDIA container toolkit",
        ),
        ('exec: "trian": executable file not found in $PATH: unknown', "not in the image"),
        ("Minimum memory limit allowed is 6MB", "could not be started"),
    ],
)
def test_a_container_that_did_not_start_says_why(message: str, advice: str) -> None:
    reason, sentence = start_fault(message)
    assert reason == "start_failed"
    assert advice in sentence
    assert message in sentence

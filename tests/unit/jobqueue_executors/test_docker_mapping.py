"""Requests to Docker and the meaning of its answers; the JSON is that of a 20.10 engine."""

from typing import Any

import msgspec
import pytest

from jobqueue.executors.confinement import has_seccomp
from jobqueue.executors.docker.mapping import (
    container_options,
    engine_time_ns,
    is_cause_open,
    observe_container,
    start_failure,
    usage_between,
)
from jobqueue.executors.docker.pull import PullProgress
from jobqueue.executors.pull_failures import pull_failure
from protocol.attempts import AttemptSpec, ObservedState, StopReason
from protocol.job_spec import HealthCheck, HealthCheckKind, Mount, Port

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
    options = container_options(SPEC, owner="dgx-01")
    assert options["nano_cpus"] == 1_500_000_000
    assert options["mem_limit"] == 2**30
    assert options["labels"] == {
        "io.vedette.attempt": "a",
        "io.vedette.job": "j",
        "io.vedette.appliance": "dgx-01",
    }
    assert options["environment"]["EPOCHS"] == "3"
    assert "restart_policy" not in options


def test_the_command_is_a_vector_that_no_shell_sees() -> None:
    assert container_options(SPEC, owner="dgx-01")["command"] == [
        "python",
        "train.py",
        "; rm -rf /",
    ]


def test_an_empty_command_leaves_the_images_own() -> None:
    assert (
        container_options(
            AttemptSpec(attempt_id="a", job_id="j", name="n", image="i"), owner="dgx-01"
        )["command"]
        is None
    )


def test_gpus_are_given_by_uuid() -> None:
    options = container_options(SPEC, owner="dgx-01")
    [request] = options["device_requests"]
    assert request["DeviceIDs"] == ["GPU-1", "MIG-2"]
    assert request["Capabilities"] == [["gpu"]]
    assert options["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,MIG-2"


def test_gpus_are_cdi_devices_where_the_engine_lists_them() -> None:
    listed = [
        {"Source": "cdi", "ID": f"nvidia.com/gpu={device}"}
        for device in ("0", "GPU-1", "MIG-2", "all")
    ]
    [request] = container_options(SPEC, owner="dgx-01", engine={"DiscoveredDevices": listed})[
        "device_requests"
    ]
    assert (request["Driver"], request["Capabilities"]) == ("cdi", [])
    assert request["DeviceIDs"] == ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=MIG-2"]
    [request] = container_options(SPEC, owner="dgx-01", engine={"DiscoveredDevices": listed[:2]})[
        "device_requests"
    ]
    assert request["Driver"] == ""


def test_a_client_of_mps_has_the_hosts_shared_memory_and_is_confined_otherwise() -> None:
    usual, shared = (
        container_options(
            msgspec.structs.replace(SPEC, uses_host_ipc=uses_host_ipc), owner="dgx-01"
        )
        for uses_host_ipc in (False, True)
    )

    assert (usual["ipc_mode"], shared["ipc_mode"]) == ("private", "host")
    assert shared["shm_size"] is None
    differing = {name for name in usual if shared[name] != usual[name]}
    assert differing == {"ipc_mode", "shm_size"}


def test_paths_ports_shared_memory_and_health_check_reach_the_container() -> None:
    options = container_options(
        owner="dgx-01",
        spec=msgspec.structs.replace(
            SPEC,
            shared_memory_bytes=2**20,
            working_dir="/work",
            mounts=[Mount(source="/data", target="/mnt")],
            ports=[Port(container_port=8888, name="web")],
            health_check=HealthCheck(kind=HealthCheckKind.COMMAND, command="true"),
        ),
    )
    assert (options["shm_size"], options["working_dir"]) == (2**20, "/work")
    [mount] = options["mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == ("/data", "/mnt", True)
    assert options["ports"] == {"8888/tcp": ("127.0.0.1", None)}
    assert options["healthcheck"]["test"] == ["CMD-SHELL", "true"]
    described = inspected("running") | {
        "NetworkSettings": {"Ports": {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": "49153"}]}},
        "Config": {"Labels": options["labels"]},
    }
    seen = observe_container("a", described, stop_reason=None)
    assert seen.endpoints == {"web": "127.0.0.1:49153"}


def test_the_progress_of_a_pull_counts_layers_and_bytes() -> None:
    progress = PullProgress()
    for line in (
        {"status": "Pulling from train", "id": "1"},
        {"status": "Already exists", "id": "a"},
        {"status": "Pulling fs layer", "id": "b"},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 47, "total": 100}},
    ):
        progress.add(line)
    assert progress.text == "1 of 2 layers, 40 % downloaded"


def test_a_job_without_gpus_sees_none() -> None:
    options = container_options(
        AttemptSpec(attempt_id="a", job_id="j", name="n", image="i"), owner="dgx-01"
    )
    assert "device_requests" not in options
    assert options["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"]}, True),
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"]}, True),
        ({"SecurityOptions": ["name=seccomp,profile=unconfined"]}, False),
        ({"SecurityOptions": ["name=apparmor"]}, False),
        ({"SecurityOptions": None}, False),
    ],
)
def test_an_engine_without_a_seccomp_filter_is_recognized(
    engine: dict[str, list[str]],
    expected: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert has_seccomp(engine) is expected


def test_a_service_is_restarted_by_the_engine() -> None:
    spec = AttemptSpec(attempt_id="a", job_id="j", name="n", image="i", is_service=True)
    assert container_options(spec, owner="dgx-01")["restart_policy"] == {"Name": "unless-stopped"}


@pytest.mark.parametrize(
    ("description", "stop_reason", "state", "reason"),
    [
        (inspected("created", StartedAt=NEVER), None, ObservedState.STARTING, ""),
        (inspected("running"), None, ObservedState.RUNNING, ""),
        (inspected("paused"), None, ObservedState.RUNNING, ""),
        (inspected("restarting", ExitCode=1), None, ObservedState.RUNNING, ""),
        (inspected("exited"), None, ObservedState.SUCCEEDED, ""),
        (inspected("exited", ExitCode=3), None, ObservedState.FAILED, "exit_code"),
        (
            inspected("exited", ExitCode=137, OOMKilled=True),
            None,
            ObservedState.FAILED,
            "out_of_memory",
        ),
        (
            inspected("exited", ExitCode=1, OOMKilled=True),
            None,
            ObservedState.FAILED,
            "out_of_memory",
        ),
        (inspected("exited", ExitCode=0, OOMKilled=True), None, ObservedState.SUCCEEDED, ""),
        (
            inspected("exited", ExitCode=137),
            StopReason.USER,
            ObservedState.STOPPED,
            "stopped_by_user",
        ),
        (inspected("exited", ExitCode=137), None, ObservedState.FAILED, "signal"),
        (
            inspected("exited", ExitCode=143),
            StopReason.TIME_LIMIT,
            ObservedState.FAILED,
            "time_limit",
        ),
        (
            inspected("exited", ExitCode=0),
            StopReason.USER,
            ObservedState.STOPPED,
            "stopped_by_user",
        ),
        (
            inspected("exited", restart="unless-stopped"),
            None,
            ObservedState.STOPPED,
            "stopped_outside",
        ),
        (inspected("dead", ExitCode=1), None, ObservedState.FAILED, "exit_code"),
    ],
)
def test_each_state_of_a_container_means_one_thing(
    description: dict[str, Any],
    stop_reason: StopReason | None,
    state: ObservedState,
    reason: str,
) -> None:
    seen = observe_container("a", description, stop_reason=stop_reason)
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
        ("dial tcp: lookup registry-1.docker.io: no such host", "image_pull_failed"),
        ("toomanyrequests: You have reached your pull rate limit", "image_pull_failed"),
        ("unauthorized: authentication required", "image_pull_failed"),
        ("no matching manifest for linux/arm64 in the manifest list entries", "image_not_found"),
    ],
)
def test_a_pull_that_failed_says_whether_the_image_exists(message: str, reason: str) -> None:
    assert pull_failure("train:1", message)[0] == reason
    assert "'train:1'" in pull_failure("train:1", message)[1]


@pytest.mark.parametrize(
    ("message", "reason", "advice"),
    [
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            "start_failed",
            "NVIDIA container toolkit",
        ),
        ('exec: "trian": executable file not found in $PATH', "invalid_job", "not found in the im"),
        ("invalid mount: bind source path does not exist: /x", "invalid_job", "data path"),
        ("network bridge not found", "start_failed", "Can't start"),
    ],
)
def test_a_container_that_did_not_start_says_why_and_whose_fault_it_is(
    message: str, reason: str, advice: str
) -> None:
    failure_reason, sentence = start_failure(message)
    assert failure_reason == reason
    assert advice in sentence
    assert message in sentence


def test_a_killed_child_of_a_command_that_succeeds_is_mentioned() -> None:
    ended = inspected("exited", ExitCode=0, OOMKilled=True)
    seen = observe_container("a", ended, stop_reason=None)
    assert (seen.exit_code, seen.state) == (0, ObservedState.SUCCEEDED)
    assert "killed for memory above 1024 MiB" in seen.message


@pytest.mark.parametrize(
    ("exit_code", "is_flagged", "seconds", "is_open"),
    [
        (137, False, 0.5, True),
        (137, False, 2.5, False),
        (137, True, 0.5, False),
        (143, False, 0.5, False),
        (0, False, 0.5, False),
    ],
)
def test_the_flag_of_memory_may_come_after_the_exit(
    *, exit_code: int, is_flagged: bool, seconds: float, is_open: bool
) -> None:
    at = "2026-11-21T12:00:00Z"
    ended = inspected("exited", ExitCode=exit_code, OOMKilled=is_flagged, FinishedAt=at)
    seen = observe_container("a", ended, stop_reason=None)
    assert seen.finished_at_ns is not None
    assert is_cause_open(seen, now_ns=seen.finished_at_ns + int(seconds * 1e9)) is is_open

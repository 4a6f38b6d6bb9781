"""Whose a process is: control groups of all container engines, and what the log says of it."""

import logging
from pathlib import Path

import pytest

from plugins.gpu_processes.owners import Owner, Owners, container_ids

FIRST = "0123456789abcdef" * 4
SECOND = "fedcba9876543210" * 4
POD = "kubepods-burstable-pod1a2b3c4d_0000_0000_0000_000000000000.slice"


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{FIRST}.scope\n",
        f"0::/docker/{FIRST}\n",
        f"11:memory:/docker/{FIRST}\n10:cpu,cpuacct:/docker/{FIRST}\n0::/system.slice/docker.service\n",
        f"0::/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{FIRST}.scope\n",
        f"0::/kubepods/burstable/pod1a2b3c4d-0000-0000-0000-000000000000/{FIRST}\n",
        f"0::/kubepods.slice/{POD}/crio-{FIRST}.scope/container\n",
        f"0::/machine.slice/libpod-{FIRST}.scope/container\n",
        f"0::/system.slice/docker-{FIRST}.scope/init/worker.slice\n",
    ],
    ids=["systemd", "cgroupfs", "v1", "containerd", "kubepods", "crio", "podman", "nested"],
)
def test_the_container_of_a_process_is_read_from_its_control_group(cgroup: str) -> None:
    assert container_ids(cgroup) == [FIRST]


@pytest.mark.parametrize(
    "cgroup",
    ["0::/user.slice/user-1000.slice/session-2.scope\n", "0::/\n", "", f"0::/{FIRST}ab\n"],
)
def test_a_process_of_the_host_has_no_container(cgroup: str) -> None:
    assert container_ids(cgroup) == []


def test_of_nested_containers_the_outermost_comes_first() -> None:
    assert container_ids(f"0::/docker/{FIRST}/docker/{SECOND}\n") == [FIRST, SECOND]


def put(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "comm").write_text("xmrig\n")


def test_a_process_in_a_container_of_a_jobs_container_is_the_jobs(tmp_path: Path) -> None:
    put(tmp_path, 7, f"0::/docker/{FIRST}/docker/{SECOND}\n")
    owners = Owners(tmp_path, lambda: {FIRST: "job-1"})
    assert owners.of([7]) == {7: Owner("job", "job-1", FIRST[:12])}


def test_the_server_of_mps_uses_nothing_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, 7, "0::/system.slice/vedette-agent.service\n")
    (tmp_path / "7" / "comm").write_text("nvidia-cuda-mps-server"[:15] + "\n")
    assert Owners(tmp_path, dict).of([7]) == {}


def test_an_external_process_is_named_in_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, 7, "0::/user.slice\n")
    owners = Owners(tmp_path, dict)
    with caplog.at_level(logging.INFO):
        owners.of([7])
        owners.of([7])
    assert caplog.messages == ["process 7 (xmrig) of the host uses a GPU without a job"]


def test_processes_of_jobs_are_not_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, 7, f"0::/docker/{FIRST}\n")
    with caplog.at_level(logging.INFO):
        Owners(tmp_path, lambda: {FIRST: "job-1"}).of([7])
    assert caplog.messages == []

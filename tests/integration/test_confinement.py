"""Containers of jobs try to get out, on a real engine and under each policy."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import msgspec
import pytest

from core.ids import new_id
from jobqueue.executors.confinement import CAPABILITIES
from jobqueue.executors.docker.executor import DockerExecutor
from jobqueue.executors.docker.mapping import container_options
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.job_spec import ContainerPolicy
from protocol.logs import plain_log
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.polling import eventually

pytestmark = [pytest.mark.needs_docker, pytest.mark.timeout(180)]

PIDS_LIMIT = 40
# The numbers of capabilities in <linux/capability.h>.
CAPABILITY_BITS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "SETFCAP": 31,
}  # fmt: skip
SECCOMP_FILTER = "2"
OWN_DEVICES = {
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr",
    "stdin", "stdout", "tty", "urandom", "zero",
}  # fmt: skip
# Each line of output is `NAME=VALUE`, or `NAME=` and the exit status of an attempt to get out.
ESCAPES = """
bb=/bin/busybox
for key in NoNewPrivs CapEff CapPrm CapInh CapBnd CapAmb Seccomp; do
  echo "$key=$($bb awk "/^$key:/ {print \\$2}" /proc/self/status)"
done
for space in pid ipc net uts mnt cgroup; do
  echo "ns_$space=$($bb readlink /proc/self/ns/$space)"
done
echo "processes=$($bb ls /proc | $bb grep -c '^[0-9]')"
echo "devices=$($bb ls /dev | $bb tr '\\n' ' ')"
echo "sockets=$($bb find / -xdev -type s | $bb wc -l)"
try() { name=$1; shift; "$@" >/dev/null 2>&1; echo "$name=$?"; }
$bb mkdir /m
try mount $bb mount -t tmpfs none /m
try remount_sys $bb mount -o remount,rw /sys
try unshare_mounts $bb unshare -m true
try unshare_users $bb unshare -U true
try mknod $bb mknod /disk b DISK
try read_disk $bb head -c 1 /disk
try raw_socket $bb traceroute -m 1 -q 1 -w 1 127.0.0.1
try kill_neighbor $bb kill -9 NEIGHBOR
try environ_of_neighbor $bb cat /proc/NEIGHBOR/environ
try host_file $bb cat SECRET
try host_file_by_root $bb cat /proc/1/root/SECRET /proc/1/cwd/../../../../SECRET
try chroot $bb chroot / true
try host_file_by_chroot $bb chroot /proc/1/root/../../.. $bb cat SECRET
try core_pattern $bb sh -c 'echo "|/m" > /proc/sys/kernel/core_pattern'
try cgroup $bb sh -c 'echo max > $(busybox find /sys/fs/cgroup -name pids.max | head -n 1)'
try host_name $bb hostname owned
try load_module $bb insmod /bin/busybox
try chown $bb chown 1000 /m
echo "nobody:x:1000:1000::/:/bin/sh" > /etc/passwd
try switch_user $bb su nobody -c true
"""
ALWAYS_FAIL = (
    "mount", "remount_sys", "unshare_mounts", "unshare_users", "mknod", "read_disk", "raw_socket",
    "kill_neighbor", "environ_of_neighbor", "host_file", "host_file_by_root", "host_file_by_chroot",
    "core_pattern", "cgroup", "host_name", "load_module",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prisoner:
    """The results of a container's attempts, and its neighbor, which it tried to kill."""

    policy: ContainerPolicy
    results: dict[str, str]
    neighbor: AttemptObservation


@pytest.fixture(scope="module")
def executor(
    docker_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DockerExecutor]:
    executor = DockerExecutor(
        owner="dgx-01",
        spool_dir=tmp_path_factory.mktemp("spool"),
        url=docker_engine.url,
        pids_limit=PIDS_LIMIT,
    )
    yield executor
    for seen in executor.observe():
        executor.remove(seen.attempt_id)
    executor.close()


def spec_of(engine: DockerEngine, script: str, policy: str) -> AttemptSpec:
    return AttemptSpec(
        attempt_id=new_id(),
        job_id="job-1",
        name="test",
        image=engine.image,
        command=["/bin/sh", "-c", script],
        memory_bytes=64 * 2**20,
        container_policy=policy,
    )


def state_of(executor: DockerExecutor, spec: AttemptSpec) -> AttemptObservation:
    observations = (seen for seen in executor.observe() if seen.attempt_id == spec.attempt_id)
    return next(observations)


def run(executor: DockerExecutor, spec: AttemptSpec) -> str:
    """Run a container to its end and return its output."""
    executor.start(spec)
    eventually(lambda: state_of(executor, spec).state.is_final, within_seconds=60)
    return plain_log(executor.read_log(spec.attempt_id, offset=0, limit=100_000)).decode()


@pytest.fixture(scope="module", params=list(ContainerPolicy))
def prisoner(
    request: pytest.FixtureRequest,
    docker_engine: DockerEngine,
    executor: DockerExecutor,
    tmp_path_factory: pytest.TempPathFactory,
) -> Prisoner:
    """A container that tries everything beside another one, under each policy."""
    secret = tmp_path_factory.mktemp("host") / "secret"
    secret.write_text("of the host")
    neighbor = spec_of(docker_engine, "exec sleep 600", request.param)
    executor.start(neighbor)
    eventually(lambda: state_of(executor, neighbor).state is ObservedState.RUNNING)
    script = (
        ESCAPES.replace("NEIGHBOR", str(host_pid(docker_engine, neighbor)))
        .replace("SECRET", str(secret))
        .replace("DISK", disk_of(Path("/")))
    )
    output = run(executor, spec_of(docker_engine, script, request.param))
    results = dict(line.partition("=")[::2] for line in output.splitlines())
    return Prisoner(request.param, results, state_of(executor, neighbor))


def host_pid(engine: DockerEngine, spec: AttemptSpec) -> int:
    client = docker.DockerClient(base_url=engine.url)
    try:
        inspected = client.containers.get(f"vedette-{spec.attempt_id}").attrs
        return int(inspected["State"]["Pid"])
    finally:
        client.close()


def disk_of(path: Path) -> str:
    """Return the device number of the file system, as mknod takes it."""
    device = path.stat().st_dev
    return f"{os.major(device)} {os.minor(device)}"


@pytest.mark.parametrize("name", ALWAYS_FAIL)
def test_no_way_out(prisoner: Prisoner, name: str) -> None:
    assert prisoner.results[name] not in {"0", "127"}, "127 is a command that busybox lacks"


def test_the_kernel_confines_the_process(prisoner: Prisoner) -> None:
    bits = sum(1 << CAPABILITY_BITS[name] for name in CAPABILITIES[prisoner.policy])
    results = prisoner.results
    assert results["NoNewPrivs"] == "1"
    assert results["Seccomp"] == SECCOMP_FILTER
    assert {
        int(results[f"Cap{capability_set}"], 16) for capability_set in ("Eff", "Prm", "Bnd")
    } == {bits}
    assert int(results["CapAmb"], 16) == 0


@pytest.mark.parametrize("namespace", ["pid", "ipc", "net", "uts", "mnt", "cgroup"])
def test_no_namespace_is_the_hosts(prisoner: Prisoner, namespace: str) -> None:
    inside = prisoner.results[f"ns_{namespace}"]
    assert re.fullmatch(rf"{namespace}:\[\d+\]", inside)
    assert inside != str(Path(f"/proc/self/ns/{namespace}").readlink())


@pytest.mark.parametrize("policy", list(ContainerPolicy))
def test_a_client_of_mps_has_the_hosts_ipc_namespace_only(
    docker_engine: DockerEngine, executor: DockerExecutor, policy: ContainerPolicy
) -> None:
    spaces = ["pid", "ipc", "net", "uts", "mnt", "cgroup"]
    script = f"for space in {' '.join(spaces)}; do readlink /proc/self/ns/$space; done"
    spec = msgspec.structs.replace(spec_of(docker_engine, script, policy), uses_host_ipc=True)

    inside = run(executor, spec).split()

    outside = {str(Path(f"/proc/self/ns/{space}").readlink()) for space in spaces}
    assert [name for name in inside if name in outside] == [inside[1]]


def test_other_processes_devices_and_sockets_are_not_visible(prisoner: Prisoner) -> None:
    assert int(prisoner.results["processes"]) <= 5  # the shell and this pipe
    assert set(prisoner.results["devices"].split()) <= OWN_DEVICES
    assert prisoner.results["sockets"] == "0", "docker.sock or another one"


def test_the_neighbor_still_runs(prisoner: Prisoner) -> None:
    assert prisoner.neighbor.state is ObservedState.RUNNING


@pytest.mark.parametrize("name", ["chown", "switch_user", "chroot"])
def test_only_the_standard_policy_lets_root_change_owners_and_users(
    prisoner: Prisoner, name: str
) -> None:
    is_allowed = prisoner.policy is ContainerPolicy.STANDARD
    assert (prisoner.results[name] == "0") is is_allowed


@pytest.mark.parametrize("policy", list(ContainerPolicy))
def test_a_fork_bomb_ends_at_the_limit_of_processes(
    docker_engine: DockerEngine, executor: DockerExecutor, policy: ContainerPolicy
) -> None:
    bomb = "n=0; while true; do sleep 600 & n=$((n+1)); echo $n; done"
    spec = spec_of(docker_engine, bomb, policy)
    output = run(executor, spec)
    started = [int(line) for line in output.splitlines() if line.isdigit()]
    assert "fork" in output
    assert PIDS_LIMIT - 5 < max(started) < PIDS_LIMIT


def test_an_unknown_policy_has_no_container(docker_engine: DockerEngine) -> None:
    with pytest.raises(KeyError):
        container_options(spec_of(docker_engine, "true", "privileged"), owner="a")

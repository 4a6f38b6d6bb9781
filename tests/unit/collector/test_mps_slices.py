"""Shares of GPUs by MPS, over a control daemon that is a process of its own."""

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from collector.gpu_slices.base import SliceError
from collector.gpu_slices.mps import MPSSlices
from collector.gpu_slices.mps_control import ControlDaemons
from collector.gpu_slices.mps_faults import MPSFaults
from core.clock import to_ns
from protocol.attempts import AttemptObservation, ObservedState
from protocol.gpu_slices import GPUSlice, PartitionMode
from tests.fixtures.mps import MPSHost, mps_host
from tests.fixtures.polling import eventually

__all__ = ["mps_host"]

GIB = 2**30
GPU = "GPU-1"
EXCLUSIVE = 3


def share_of(gpu_uuid: str = GPU, milli: int = 250) -> GPUSlice:
    return GPUSlice(
        mode=PartitionMode.MPS, gpu_uuid=gpu_uuid, share_milli=milli, memory_bytes=4 * GIB
    )


class Site:
    """An appliance whose agent may be started again."""

    def __init__(self, host: MPSHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.state_path = folder / "mps.json"
        self.proc = folder / "proc"
        self.restart()

    def restart(self, control: ControlDaemons | None = None) -> MPSSlices:
        control = control or self.host.control()
        faults = MPSFaults(control, lambda: datetime.now(UTC), self.proc)
        self.slices = MPSSlices(control, self.state_path, faults=faults)
        return self.slices

    def settle(self, *attempts: str) -> None:
        self.slices.settle([], {name: share_of() for name in attempts}, set())

    def use(self, *attempts: str) -> None:
        for name in attempts:
            self.slices.prepare(name, share_of())
        self.settle(*attempts)


@pytest.fixture
def site(mps_host: MPSHost, tmp_path: Path) -> Site:
    return Site(mps_host, tmp_path)


def test_an_attempt_gets_the_pipe_directory_and_its_limits(site: Site) -> None:
    access = site.slices.prepare("a", share_of())

    assert site.slices.modes == (PartitionMode.MPS,)
    assert access.gpu_uuids == [GPU]
    assert access.uses_host_ipc
    assert access.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert access.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    [mount] = access.mounts
    assert (mount.source, mount.is_read_only) == (str(site.host.folder / GPU / "pipe"), False)
    assert access.env["CUDA_MPS_PIPE_DIRECTORY"] == mount.target
    daemon = dict(line.split("=", 1) for line in site.host.tell(GPU, "environment").splitlines())
    assert daemon["CUDA_VISIBLE_DEVICES"] == GPU
    assert daemon["CUDA_MPS_LOG_DIRECTORY"] == str(site.host.folder / GPU / "log")


@pytest.mark.parametrize(("milli", "percent"), [(125, "12.5"), (333, "33.3"), (1000, "100")])
def test_a_share_is_a_percentage_of_the_threads(site: Site, milli: int, percent: str) -> None:
    env = site.slices.prepare("a", share_of(milli=milli)).env

    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent


def test_the_daemons_folders_are_open_to_its_clients(site: Site) -> None:
    site.use("a")

    for folder in (site.host.folder, site.host.folder / GPU, site.host.folder / GPU / "pipe"):
        assert folder.stat().st_mode & 0o777 == 0o755


def test_the_compute_mode_is_put_back_with_the_last_attempt(site: Site) -> None:
    site.host.modes[GPU] = 2
    site.use("a", "b")
    pid = site.host.pid(GPU)
    assert site.host.modes[GPU] == EXCLUSIVE

    site.settle("b")
    assert (site.host.pid(GPU), site.host.modes[GPU]) == (pid, EXCLUSIVE)
    site.settle()

    assert (site.host.pid(GPU), site.host.modes[GPU]) == (None, 2)


def test_each_gpu_has_a_daemon_of_its_own(site: Site) -> None:
    site.slices.prepare("a", share_of())
    site.slices.prepare("b", share_of("GPU-2"))

    assert None not in {site.host.pid(GPU), site.host.pid("GPU-2")}
    site.slices.settle([], {"b": share_of("GPU-2")}, set())
    assert site.host.pid(GPU) is None
    assert site.host.pid("GPU-2") is not None


def test_the_next_user_gets_another_daemon(site: Site) -> None:
    site.use("alice")
    pid = site.host.pid(GPU)

    site.settle("bob")  # alice's attempt has ended, bob's is next
    site.slices.prepare("bob", share_of())

    assert site.host.pid(GPU) not in {pid, None}


def test_a_restarted_agent_adopts_the_daemon(site: Site) -> None:
    site.use("a")
    pid = site.host.pid(GPU)

    site.restart()
    site.use("a", "b")

    assert site.host.pid(GPU) == pid
    site.settle()
    assert (site.host.pid(GPU), site.host.modes[GPU]) == (None, 0)


def test_a_daemon_of_a_lost_file_is_adopted_or_ended(site: Site) -> None:
    site.use("a")
    pid = site.host.pid(GPU)
    site.state_path.unlink()

    site.restart()
    site.settle("a")
    assert site.host.pid(GPU) == pid
    site.state_path.unlink()
    site.restart()
    site.settle()

    assert (site.host.pid(GPU), site.host.modes[GPU]) == (None, 0)


def test_daemons_of_others_are_left_alone(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = MPSHost(tmp_path_factory.mktemp("o"), site.host.program)
    other.control().start(GPU)

    site.use("a")
    site.settle()

    assert other.pid(GPU) is not None
    other.control().end(GPU)


def test_a_daemon_that_has_died_is_started_again(site: Site) -> None:
    site.use("a")
    pid = site.host.pid(GPU)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: site.host.pid(GPU) is None, what="the end of the daemon")

    site.settle("a")

    assert site.host.pid(GPU) not in {None, pid}


def test_a_daemon_that_does_not_quit_is_killed_with_its_server(site: Site) -> None:
    site.use("a")
    site.host.tell(GPU, "stay\nconnect 1\n")
    [server] = site.host.tell(GPU, "get_server_list").split()

    site.settle()

    assert site.host.pid(GPU) is None
    eventually(lambda: not Path(f"/proc/{server}").exists(), what="the end of the server")
    assert site.host.modes[GPU] == 0


class KilledError(BaseException):
    """The agent was killed."""


class DyingControl(ControlDaemons):
    """Ends the agent before or after its n-th change of the host."""

    def __init__(self, host: MPSHost, dies_at: int) -> None:
        super().__init__(
            host.folder, program=str(host.program), is_root=True, switch_mode=self._die
        )
        self._host, self._left = host, dies_at

    def start(self, gpu_uuid: str) -> None:
        self._step(lambda: super(DyingControl, self).start(gpu_uuid))

    def end(self, gpu_uuid: str) -> None:
        self._step(lambda: super(DyingControl, self).end(gpu_uuid))

    def _die(self, gpu_uuid: str, mode: int | None) -> int:
        before = self._host.modes.get(gpu_uuid, 0)
        if mode is not None:
            self._step(lambda: self._host.modes.update({gpu_uuid: mode}))
        return before

    def _step(self, change: Callable[[], object]) -> None:
        for act in (lambda: None, change):
            if self._left == 0:
                raise KilledError
            self._left -= 1
            act()


@pytest.mark.parametrize("dies_at", range(9))
@pytest.mark.parametrize("is_wanted", [True, False])
def test_an_agent_killed_at_any_step_leaves_nothing_behind(
    site: Site, *, dies_at: int, is_wanted: bool
) -> None:
    site.host.modes[GPU] = 1
    site.restart(DyingControl(site.host, dies_at))
    try:
        site.use("a")
        site.settle()
    except KilledError:
        pass
    else:
        assert dies_at == 8, "every step of the way is tried"

    site.restart()
    if is_wanted:
        site.settle("b")
        site.use("b")
        assert site.host.pid(GPU) is not None
        assert site.host.modes[GPU] == EXCLUSIVE
    site.settle()

    assert (site.host.pid(GPU), site.host.modes[GPU]) == (None, 1)


def test_without_the_program_there_is_no_mps(site: Site, tmp_path: Path) -> None:
    slices = site.restart(site.host.control(program=tmp_path / "nvidia-cuda-mps-control"))

    assert slices.modes == ()
    with pytest.raises(SliceError, match="not installed"):
        slices.prepare("a", share_of())
    slices.settle([], {}, set())


def test_an_agent_without_root_offers_no_mps(site: Site) -> None:
    slices = site.restart(site.host.control(is_root=False))

    assert slices.modes == ()
    with pytest.raises(SliceError, match="does not run as root"):
        slices.prepare("a", share_of())


def test_a_path_too_long_for_a_socket_is_refused(site: Site) -> None:
    long = share_of(f"GPU-{'1' * 90}")

    with pytest.raises(SliceError, match="mps_dir"):
        site.slices.prepare("a", long)


def test_a_daemon_that_does_not_start_says_why(site: Site, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho no device\nexit 1\n")
    program.chmod(0o755)
    slices = site.restart(site.host.control(program=program))

    with pytest.raises(SliceError, match="no device"):
        slices.prepare("a", share_of())
    slices.settle([], {}, set())
    assert site.host.modes[GPU] == 0


def ended(attempt_id: str, *, seconds: float = 1, reason: str = "exit_code") -> AttemptObservation:
    now = datetime.now(UTC)
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.FAILED,
        exit_code=1,
        reason=reason,
        message="The command exited with code 1. See the log.",
        started_at_ns=to_ns(now - timedelta(hours=1)),
        finished_at_ns=to_ns(now + timedelta(seconds=seconds)),
    )


def connect(site: Site, **pids: int) -> dict[str, str]:
    """Connect a process of each attempt; return the attempts by container."""
    containers = {}
    for number, (name, pid) in enumerate(pids.items()):
        container = f"{number:064x}"
        containers[container] = name
        (site.proc / str(pid)).mkdir(parents=True)
        (site.proc / str(pid) / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")
        site.host.tell(GPU, f"connect {pid}\n")
    site.slices.review([], containers)
    return containers


def test_a_fault_is_told_to_the_neighbors_of_the_job_that_caused_it(site: Site) -> None:
    site.use("a", "b")
    containers = connect(site, a=4267, b=4281)
    site.host.tell(GPU, "fault 4267\n")

    first, second = site.slices.review([ended("a"), ended("b")], containers)

    assert first.reason == "exit_code"
    assert "process 4267 caused a fatal fault on GPU-1" in first.message
    assert second.reason == "gpu_fault_of_neighbor"
    assert second.exit_code == 1
    assert "Another job" in second.message
    assert GPU in second.message
    assert "MIG instance or a whole GPU" in second.message


def test_where_mps_names_no_process_the_message_says_so(site: Site) -> None:
    site.use("a", "b", "c")
    containers = connect(site, a=1, b=2, c=3)
    site.host.tell(GPU, "fault 0\n")

    for seen in site.slices.review([ended("a"), ended("b")], containers):
        assert seen.reason == "gpu_fault_of_neighbor"
        assert "This job or one of 2 others there caused" in seen.message
        assert "does not tell which" in seen.message


def test_a_log_that_names_several_processes_names_no_cause(site: Site) -> None:
    site.use("a", "b")
    containers = connect(site, a=1, b=2)
    site.host.tell(GPU, "fault 1\nfault 2\n")

    first, second = site.slices.review([ended("a"), ended("b")], containers)

    assert {first.reason, second.reason} == {"gpu_fault_of_neighbor"}
    assert "does not tell which" in first.message


def test_asking_the_daemon_is_no_reason_to_ask_it_again(site: Site) -> None:
    site.use("a", "b")
    containers = connect(site, a=1, b=2)
    site.slices.review([], containers)
    log = site.host.folder / GPU / "log" / "control.log"
    before = log.read_text()

    for _ in range(3):
        site.slices.review([], containers)

    assert log.read_text() == before


def test_attempts_are_told_that_the_daemon_was_started_again(site: Site) -> None:
    site.use("a", "b")
    pid = site.host.pid(GPU)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: site.host.pid(GPU) is None, what="the end of the daemon")
    site.settle("a", "b")
    running = msgspec.structs.replace(ended("a"), state=ObservedState.RUNNING, reason="")
    later = msgspec.structs.replace(running, started_at_ns=to_ns(datetime.now(UTC)))

    first, second, third = site.slices.review([running, ended("b"), later], {})

    text = "The MPS control daemon of GPU-1 ended and was started again"
    assert text in first.message
    assert text in second.message
    assert second.reason == "exit_code"
    assert third == later


def test_a_server_that_exits_is_a_fault(site: Site) -> None:
    site.use("a", "b")
    containers = connect(site, a=1, b=2)
    site.host.tell(GPU, "crash\n")

    [seen] = site.slices.review([ended("b")], containers)

    assert seen.reason == "gpu_fault_of_neighbor"


def test_a_server_that_cannot_start_is_no_jobs_fault(site: Site) -> None:
    site.use("a", "b")
    site.host.tell(GPU, "fail\nconnect 1\n")

    [seen] = site.slices.review([ended("a")], {})
    assert seen.reason == "exit_code"
    assert "fault" not in seen.message


def test_the_only_job_on_a_gpu_has_no_neighbor(site: Site) -> None:
    site.use("a")
    containers = connect(site, a=1)
    site.host.tell(GPU, "fault 0\n")

    [seen] = site.slices.review([ended("a")], containers)

    assert seen.reason == "exit_code"
    assert seen.message.endswith("A fatal fault on GPU-1 ended it.")


@pytest.mark.parametrize(
    "see",
    [
        lambda: ended("a", reason="out_of_memory"),
        lambda: ended("a", reason="time_limit"),
        lambda: ended("a", seconds=3600),
        lambda: ended("a", seconds=-60),
        lambda: ended("other"),
        lambda: AttemptObservation(attempt_id="a", state=ObservedState.SUCCEEDED, exit_code=0),
        lambda: AttemptObservation(attempt_id="a", state=ObservedState.RUNNING),
    ],
    ids=["out of memory", "time limit", "later", "before", "another GPU", "succeeded", "running"],
)
def test_a_fault_does_not_explain_every_end(
    site: Site, see: Callable[[], AttemptObservation]
) -> None:
    site.use("a", "b")
    containers = connect(site, a=1, b=2)
    site.host.tell(GPU, "fault 2\n")
    seen = see()

    assert site.slices.review([seen], containers) == [seen]


def test_a_fault_while_the_agent_was_away_is_found_in_the_log(site: Site) -> None:
    site.use("a", "b")
    containers = connect(site, a=1, b=2)
    site.host.tell(GPU, "fault 0\n")

    site.restart()
    [seen] = site.slices.review([ended("a")], containers)

    assert seen.reason == "gpu_fault_of_neighbor"

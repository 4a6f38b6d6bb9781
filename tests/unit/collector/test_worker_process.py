"""Worker processes: plugins hang, crash and print there without affecting the agent."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collector.errors import ReadingTimedOutError
from collector.reading.plugin_reader import WORKER_START_SECONDS
from collector.reading.worker_process import WorkerPlugin, WorkerProcess
from collector.reading.worker_protocol import Configure, Gather, Reply, Request
from plugins.base import PluginContext, PluginError, PluginUnavailableError
from protocol.gpu_processes import GPUProcess
from protocol.inventory import Inventory
from tests.fixtures.polling import eventually
from tests.fixtures.puppets import LocalPuppet, PuppetPlugin, puppet_plan
from timeseries.points import Point

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class RecordingWorker(WorkerProcess):
    """A worker that records the timeout of each request."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.timeouts: list[tuple[type[Request], float]] = []

    def request(self, request: Request, *, timeout_seconds: float) -> Reply:
        self.timeouts.append((type(request), timeout_seconds))
        return super().request(request, timeout_seconds=timeout_seconds)


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess("puppets")
    yield worker
    worker.close()


def puppet(
    worker: WorkerProcess,
    act: str = "count",
    *,
    name: str = "puppet",
    plugin_class: type = PuppetPlugin,
    time_limit_seconds: float = 20.0,
    context: PluginContext | None = None,
) -> WorkerPlugin:
    plan = puppet_plan(
        act, name=name, plugin_class=plugin_class, time_limit_seconds=time_limit_seconds
    )
    return WorkerPlugin(plan, context or PluginContext(), worker)


def read(plugin: WorkerPlugin) -> Point:
    [point] = plugin.gather(NOW)
    return point


def is_gone(pid: int) -> bool:
    """Return whether no process has this id, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also where its new parent has not taken note."""
    try:
        return "Z (zombie)" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_reading_is_returned_from_the_worker_unchanged(worker: WorkerProcess) -> None:
    point = read(puppet(worker))
    assert point.fields == {"readings": 1, "share": 0.5, "is_on": True, "text": "a b"}
    assert point.tags == {"pid": str(worker.pid)}
    assert point.time_ns == 1772366400 * 10**9
    assert worker.pid != os.getpid()


def test_plugins_of_one_worker_share_its_process_and_retain_their_state(
    worker: WorkerProcess,
) -> None:
    first, second = puppet(worker, name="first"), puppet(worker, name="second")
    pids = {read(first).tags["pid"], read(second).tags["pid"], read(first).tags["pid"]}
    assert pids == {str(worker.pid)}
    assert read(first).fields["readings"] == 3


@pytest.mark.parametrize("act", ["print", "print in C", "run a program", "read stdin"])
def test_a_plugin_may_use_its_standard_streams(worker: WorkerProcess, act: str) -> None:
    plugin = puppet(worker, act)
    assert [read(plugin).fields["readings"] for _ in range(2)] == [1, 2]


def test_the_worker_of_a_reading_that_hangs_is_killed(worker: WorkerProcess) -> None:
    plugin = puppet(worker, "hang", time_limit_seconds=0.3)
    worker.start()
    pid = worker.pid
    with pytest.raises(ReadingTimedOutError, match="no response within"):
        read(plugin)
    assert pid is not None
    assert is_gone(pid)


def test_the_start_of_a_worker_does_not_count_as_reading() -> None:
    worker = RecordingWorker("puppets")
    read(puppet(worker, time_limit_seconds=20.0))
    worker.close()
    assert worker.timeouts == [(Configure, WORKER_START_SECONDS), (Gather, 20.0)]


def test_a_worker_that_does_not_start_in_time_is_killed(worker: WorkerProcess) -> None:
    plugin = WorkerPlugin(puppet_plan(), PluginContext(), worker, start_limit_seconds=0.0)
    with pytest.raises(ReadingTimedOutError, match="no response within 0 s"):
        read(plugin)
    assert worker.pid is None


def test_after_a_hang_the_other_plugins_get_a_new_worker(worker: WorkerProcess) -> None:
    good = puppet(worker, name="good")
    before = read(good).tags["pid"]
    with pytest.raises(ReadingTimedOutError):
        read(puppet(worker, "hang", name="bad", time_limit_seconds=0.3))
    after = read(good)
    assert after.tags["pid"] != before
    assert after.fields["readings"] == 1


def test_a_crash_is_an_error_of_the_plugin_that_was_read(worker: WorkerProcess) -> None:
    with pytest.raises(PluginError, match="died of SIGSEGV") as raised:
        read(puppet(worker, "crash"))
    assert not isinstance(raised.value, ReadingTimedOutError)
    assert read(puppet(worker)).fields["readings"] == 1


def test_the_exit_status_of_a_worker_is_reported(worker: WorkerProcess) -> None:
    with pytest.raises(PluginError, match="exited with status 3"):
        read(puppet(worker, "exit"))


def test_a_worker_killed_between_readings_is_started_again(worker: WorkerProcess) -> None:
    plugin = puppet(worker)
    first = read(plugin).tags["pid"]
    os.kill(int(first), signal.SIGKILL)
    eventually(lambda: not worker.is_running)
    assert read(plugin).tags["pid"] != first


def test_errors_of_plugins_are_reported_with_their_message(worker: WorkerProcess) -> None:
    with pytest.raises(PluginUnavailableError, match="nothing here"):
        read(puppet(worker, "miss", name="absent"))
    with pytest.raises(PluginError, match="broken on purpose"):
        read(puppet(worker, "fail", name="broken"))


def test_a_plugin_that_needs_a_new_process_gets_one(worker: WorkerProcess) -> None:
    before = read(puppet(worker, name="good")).tags["pid"]
    with pytest.raises(PluginError, match="the driver was updated"):
        read(puppet(worker, "restart", name="updated"))
    assert is_gone(int(before))
    assert read(puppet(worker, name="good")).tags["pid"] != before


def test_what_a_plugin_publishes_reaches_the_agent(worker: WorkerProcess) -> None:
    inventories: list[Inventory] = []
    processes: list[GPUProcess] = []
    context = PluginContext(
        publish_inventory=inventories.append, publish_gpu_processes=processes.extend
    )
    read(puppet(worker, "publish", context=context))
    assert [inventory.hostname for inventory in inventories] == ["dgx-1"]
    assert [(process.pid, process.name) for process in processes] == [(7, "python3")]


def test_the_worker_receives_the_current_jobs(worker: WorkerProcess) -> None:
    jobs = {"gpu-1": "job-1"}
    plugin = puppet(worker, context=PluginContext(job_of_gpu=lambda: jobs))
    assert read(plugin).tags["gpu-1"] == "job-1"
    jobs["gpu-1"] = "job-2"
    assert read(plugin).tags["gpu-1"] == "job-2"


def test_a_plugin_that_needs_no_worker_is_read_in_the_agent(worker: WorkerProcess) -> None:
    assert read(puppet(worker, plugin_class=LocalPuppet)).tags == {"pid": str(os.getpid())}
    assert worker.pid is None


def test_a_closed_plugin_starts_afresh(worker: WorkerProcess) -> None:
    old = puppet(worker)
    read(old)
    old.close()
    assert read(puppet(worker)).fields["readings"] == 1


def test_closing_ends_the_worker_and_starts_no_other() -> None:
    worker = WorkerProcess("puppets")
    plugin = puppet(worker)
    pid = int(read(plugin).tags["pid"])
    worker.close()
    assert is_gone(pid)
    with pytest.raises(PluginError, match="the agent is stopping"):
        read(plugin)


def test_a_worker_that_hangs_ends_when_the_agent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        "import threading\n"
        "from collector.reading.worker_process import WorkerPlugin\n"
        "from collector.reading.worker_process import WorkerProcess\n"
        "from core.clock import utc_now\n"
        "from plugins.base import PluginContext\n"
        "from tests.fixtures.puppets import puppet_plan\n"
        "worker = WorkerProcess('puppets')\n"
        "worker.start()\n"
        "print(worker.pid, flush=True)\n"
        "list(WorkerPlugin(puppet_plan('hang'), PluginContext(), worker).gather(utc_now()))\n",
        encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)},
    ) as agent:
        assert agent.stdout is not None
        assert agent.stderr is not None
        pid = int(agent.stdout.readline())
        assert agent.stderr.readline() == b"hanging\n"
        agent.kill()
        eventually(lambda: has_ended(pid))

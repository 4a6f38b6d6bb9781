"""Plugins in a child process: they hang, crash and print there, and the agent goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collector.errors import ReadingTimedOutError
from collector.reading.child_plugin import ChildPlugin
from collector.reading.child_process import ChildProcess
from collector.reading.child_wire import Configure, Gather, Reply, Request
from collector.reading.readers import CHILD_START_SECONDS
from jobqueue.executors.wire import Inventory
from plugins.base import PluginContext, PluginError, PluginUnavailableError
from tests.fixtures.polling import eventually
from tests.fixtures.puppets import ChildlessPuppet, PuppetPlugin, puppet_plan
from timeseries.points import Point

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class PatienceChild(ChildProcess):
    """A child that notes how long each answer was waited for at most."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.patience: list[tuple[type[Request], float]] = []

    def ask(self, request: Request, *, timeout_seconds: float) -> Reply:
        self.patience.append((type(request), timeout_seconds))
        return super().ask(request, timeout_seconds=timeout_seconds)


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    child = ChildProcess("puppets")
    yield child
    child.close()


def puppet(
    child: ChildProcess,
    act: str = "count",
    *,
    name: str = "puppet",
    plugin_class: type = PuppetPlugin,
    time_limit_seconds: float = 20.0,
    context: PluginContext | None = None,
) -> ChildPlugin:
    plan = puppet_plan(
        act, name=name, plugin_class=plugin_class, time_limit_seconds=time_limit_seconds
    )
    return ChildPlugin(plan, context or PluginContext(), child)


def read(plugin: ChildPlugin) -> Point:
    [point] = plugin.gather(NOW)
    return point


def is_gone(pid: int) -> bool:
    """Whether no process has this id, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also where its new parent has not taken note."""
    try:
        return "Z (zombie)" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_reading_comes_back_from_the_child_as_it_was_made(child: ChildProcess) -> None:
    point = read(puppet(child))
    assert point.fields == {"readings": 1, "share": 0.5, "is_on": True, "text": "a b"}
    assert point.tags == {"pid": str(child.pid)}
    assert point.time_ns == 1772366400 * 10**9
    assert child.pid != os.getpid()


def test_plugins_of_one_child_share_its_process_and_keep_their_state(child: ChildProcess) -> None:
    first, second = puppet(child, name="first"), puppet(child, name="second")
    pids = {read(first).tags["pid"], read(second).tags["pid"], read(first).tags["pid"]}
    assert pids == {str(child.pid)}
    assert read(first).fields["readings"] == 3


@pytest.mark.parametrize("act", ["print", "print in C", "run a program", "read stdin"])
def test_what_a_plugin_does_to_its_standard_streams_disturbs_nothing(
    child: ChildProcess, act: str
) -> None:
    plugin = puppet(child, act)
    assert [read(plugin).fields["readings"] for _ in range(2)] == [1, 2]


def test_a_reading_that_hangs_costs_the_child_its_life(child: ChildProcess) -> None:
    plugin = puppet(child, "hang", time_limit_seconds=0.3)
    child.start()
    pid = child.pid
    with pytest.raises(ReadingTimedOutError, match="did not answer within"):
        read(plugin)
    assert pid is not None
    assert is_gone(pid)


def test_the_start_of_a_child_does_not_count_as_reading() -> None:
    child = PatienceChild("puppets")
    read(puppet(child, time_limit_seconds=20.0))
    child.close()
    assert child.patience == [(Configure, CHILD_START_SECONDS), (Gather, 20.0)]


def test_a_child_that_does_not_start_in_time_is_killed(child: ChildProcess) -> None:
    plugin = ChildPlugin(puppet_plan(), PluginContext(), child, start_limit_seconds=0.0)
    with pytest.raises(ReadingTimedOutError, match="did not answer within 0 s"):
        read(plugin)
    assert child.pid is None


def test_after_a_hang_the_other_plugins_get_a_fresh_child(child: ChildProcess) -> None:
    good = puppet(child, name="good")
    before = read(good).tags["pid"]
    with pytest.raises(ReadingTimedOutError):
        read(puppet(child, "hang", name="bad", time_limit_seconds=0.3))
    after = read(good)
    assert after.tags["pid"] != before
    assert after.fields["readings"] == 1


def test_a_crash_is_an_error_of_the_plugin_that_was_read(child: ChildProcess) -> None:
    with pytest.raises(PluginError, match="child process died by SIGSEGV") as raised:
        read(puppet(child, "crash"))
    assert not isinstance(raised.value, ReadingTimedOutError)
    assert read(puppet(child)).fields["readings"] == 1


def test_a_child_that_ends_itself_says_with_what_status(child: ChildProcess) -> None:
    with pytest.raises(PluginError, match="ended with status 3"):
        read(puppet(child, "exit"))


def test_a_child_that_was_killed_between_readings_is_started_again(child: ChildProcess) -> None:
    plugin = puppet(child)
    first = read(plugin).tags["pid"]
    os.kill(int(first), signal.SIGKILL)
    eventually(lambda: not child.is_running)
    assert read(plugin).tags["pid"] != first


def test_faults_of_plugins_cross_the_pipe_in_their_own_words(child: ChildProcess) -> None:
    with pytest.raises(PluginUnavailableError, match="nothing here"):
        read(puppet(child, "miss", name="absent"))
    with pytest.raises(PluginError, match="broken on purpose"):
        read(puppet(child, "fail", name="broken"))


def test_a_plugin_that_needs_a_new_process_gets_one(child: ChildProcess) -> None:
    before = read(puppet(child, name="good")).tags["pid"]
    with pytest.raises(PluginError, match="the driver was updated"):
        read(puppet(child, "restart", name="updated"))
    assert is_gone(int(before))
    assert read(puppet(child, name="good")).tags["pid"] != before


def test_a_published_inventory_reaches_the_agent(child: ChildProcess) -> None:
    published: list[Inventory] = []
    context = PluginContext(publish_inventory=published.append)
    read(puppet(child, "publish", context=context))
    assert [inventory.hostname for inventory in published] == ["dgx-1"]


def test_the_child_knows_the_jobs_of_the_moment(child: ChildProcess) -> None:
    jobs = {"gpu-1": "job-1"}
    plugin = puppet(child, context=PluginContext(job_of_gpu=lambda: jobs))
    assert read(plugin).tags["gpu-1"] == "job-1"
    jobs["gpu-1"] = "job-2"
    assert read(plugin).tags["gpu-1"] == "job-2"


def test_a_plugin_that_needs_no_child_is_read_in_the_agent(child: ChildProcess) -> None:
    assert read(puppet(child, plugin_class=ChildlessPuppet)).tags == {"pid": str(os.getpid())}
    assert child.pid is None


def test_a_closed_plugin_starts_afresh(child: ChildProcess) -> None:
    old = puppet(child)
    read(old)
    old.close()
    assert read(puppet(child)).fields["readings"] == 1


def test_closing_ends_the_child_and_starts_no_other() -> None:
    child = ChildProcess("puppets")
    plugin = puppet(child)
    pid = int(read(plugin).tags["pid"])
    child.close()
    assert is_gone(pid)
    with pytest.raises(PluginError, match="the agent is ending"):
        read(plugin)


def test_a_child_that_hangs_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        "import threading\n"
        "from collector.reading.child_plugin import ChildPlugin\n"
        "from collector.reading.child_process import ChildProcess\n"
        "from core.clock import utc_now\n"
        "from plugins.base import PluginContext\n"
        "from tests.fixtures.puppets import puppet_plan\n"
        "child = ChildProcess('puppets')\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "list(ChildPlugin(puppet_plan('hang'), PluginContext(), child).gather(utc_now()))\n",
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

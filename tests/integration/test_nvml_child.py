"""The plugin host with a driver that hangs or is updated: the child ends, all others go on."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.nvml import World, nvml_environment
from tests.fixtures.polling import eventually

END_SECONDS = 60
# A real host in a process that finds the library, reading `load` beside the GPUs; it prints the
# measurements of each reading and, when a line comes in, its child processes.
HOST = """
import json, sys, threading
from pathlib import Path
from collector.config import AgentConfig
from collector.reading.plugin_host import PluginHost, plugin_plans
from core.clock import utc_now
from plugins.base import PluginContext
from plugins.registry import plugin_names

tables = {name: {"enabled": name in {"load", "nvml", "gpu_processes"}} for name in plugin_names()}
tables["load"] |= {"interval_seconds": 0.2}
tables["nvml"] |= {"interval_seconds": 0.2, "time_limit_seconds": 8.0}
tables["gpu_processes"] |= {"interval_seconds": 0.2}
config = AgentConfig(portal_urls=["http://portal"], data_dir=Path("/nowhere"), plugins=tables)

def say(**facts):  # in one write: readings come from several threads
    sys.stdout.write(json.dumps(facts) + "\\n")
    sys.stdout.flush()

host = PluginHost(
    plugin_plans(config, is_simulated=False),
    PluginContext(),
    on_points=lambda points: say(seen=sorted({one.measurement for one in points})),
    clock=utc_now,
)
host.start()
done = threading.Event()
def watch():
    while not done.wait(0.2):
        host.watch()

watcher = threading.Thread(target=watch)
watcher.start()
for _ in sys.stdin:
    say(pids=host.worker_pids, failures=host.gather_failures)
done.set()
watcher.join()
host.stop()
"""


class HostProcess:
    """The host, and what it has told since it was last asked."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        """Let the host end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(END_SECONDS) == 0

    def kill(self) -> None:
        """End the host where it still runs, and read to the end what it told."""
        self._process.kill()
        self._reader.join(END_SECONDS)

    def wait_for(self, *measurements: str) -> None:
        """Wait for a reading, from now on, with each of these measurements."""
        while not self._lines.empty():
            self._lines.get_nowait()
        missing, deadline = set(measurements), time.monotonic() + END_SECONDS
        while missing:
            assert time.monotonic() < deadline, f"no reading of {missing} came"
            missing -= set(self._lines.get(timeout=END_SECONDS).get("seen", ()))

    def status(self) -> dict[str, Any]:
        """Return the host's child processes and how many readings failed."""
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        while "pids" not in (told := self._lines.get(timeout=END_SECONDS)):
            pass
        return told

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # one that is killed may leave half a line
                self._lines.put(json.loads(line))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A DGX."""
    world = World(tmp_path / "world")
    world.add("scenario dgx")
    return world


@pytest.fixture
def host(fake_nvml: Path, world: World) -> Iterator[HostProcess]:
    """A host that has read GPUs."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST],
        env=nvml_environment(fake_nvml, world.path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        host = HostProcess(process)
        try:
            host.wait_for("gpu", "load")
            yield host
            host.close()
        finally:
            host.kill()


def test_a_driver_call_that_hangs_ends_the_child_and_the_other_plugins_go_on(
    host: HostProcess, world: World
) -> None:
    [hung] = host.status()["pids"]
    world.add("hang nvmlDeviceGetPowerUsage")
    host.wait_for("load")
    host.wait_for("load")
    eventually(lambda: hung not in host.status()["pids"], what="the end of the child")
    assert host.status()["failures"] >= 1
    assert not Path(f"/proc/{hung}").exists()
    host.wait_for("load")


@pytest.mark.nightly
def test_gpus_are_read_again_when_the_driver_answers_again(host: HostProcess, world: World) -> None:
    world.add("hang nvmlDeviceGetPowerUsage")
    eventually(lambda: host.status()["failures"] >= 1, what="a reading that is given up")
    world.add("hang nothing")
    host.wait_for("gpu")


def test_after_a_driver_update_gpus_are_read_by_a_new_child(
    host: HostProcess, world: World
) -> None:
    [before] = host.status()["pids"]
    world.add("driver 560.35.03", "pinned 1")
    eventually(lambda: before not in host.status()["pids"], what="the end of the child")
    host.wait_for("gpu")
    assert host.status()["pids"] != [before]


def test_a_driver_update_ends_when_several_plugins_hold_nvml_open(
    host: HostProcess, world: World
) -> None:
    world.add("driver 560.35.03")
    eventually(lambda: host.status()["failures"] >= 1, what="a reading that fails")
    host.wait_for("gpu")


def test_a_child_that_is_killed_is_started_again(host: HostProcess) -> None:
    [before] = host.status()["pids"]
    os.kill(before, signal.SIGKILL)
    host.wait_for("gpu")
    assert host.status()["pids"] != [before]

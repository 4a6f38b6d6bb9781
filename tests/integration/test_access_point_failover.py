"""An agent whose access point is killed, or stopped, delivers through the next within seconds."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from collector.agent import Agent
from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.sending.listed import FILE_NAME
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN
from tests.fixtures.recording_process import RecordingProcess, accepted_lines
from tests.servers import require_program, require_root

IDENTITY = Identity(appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN)


@pytest.fixture
def accepted(tmp_path: Path) -> Path:
    return tmp_path / "accepted"


@pytest.fixture
def pair(accepted: Path) -> Iterator[list[RecordingProcess]]:
    """Two access points, each a process."""
    processes = [RecordingProcess(accepted), RecordingProcess(accepted)]
    yield processes
    for process in processes:
        process.end()


class Running:
    """An agent that reads the load of this host each second, in a thread."""

    def __init__(self, data_dir: Path, urls: list[str]) -> None:
        config = AgentConfig(
            portal_urls=urls,
            data_dir=data_dir,
            executor="none",
            interval_seconds=1.0,
            flush_interval_seconds=1.0,
            plugins={},
        )
        self.agent = Agent(config, IDENTITY)
        self._stop = Event()
        self._thread = Thread(target=self.agent.run, args=[self._stop])

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(60)


Loss = Callable[[RecordingProcess, ExitStack], None]


def kill(process: RecordingProcess, _stack: ExitStack) -> None:
    process.send_signal(signal.SIGKILL)


def stop(process: RecordingProcess, _stack: ExitStack) -> None:
    process.send_signal(signal.SIGSTOP)


def vanish(process: RecordingProcess, stack: ExitStack) -> None:
    """Drop the packets to it, as if its host had lost power."""
    require_root("drops packets")
    iptables = require_program("iptables", package="iptables")
    port = process.url.rpartition(":")[2]
    rule = ["INPUT", "-i", "lo", "-p", "tcp", "--dport", port, "-j", "DROP"]
    subprocess.run([iptables, "-w", "-I", *rule], check=True)
    stack.callback(subprocess.run, [iptables, "-w", "-D", *rule], check=True)


@pytest.mark.parametrize(
    "lose",
    [
        kill,
        pytest.param(stop, marks=pytest.mark.nightly),
        pytest.param(vanish, marks=[pytest.mark.needs_root, pytest.mark.nightly]),
    ],
)
def test_samples_go_on_at_another_access_point_and_none_is_lost(
    tmp_path: Path, accepted: Path, pair: list[RecordingProcess], *, lose: Loss
) -> None:
    data_dir = tmp_path / "agent"
    data_dir.mkdir()
    with ExitStack() as stack, Running(data_dir, [item.url for item in pair]) as running:
        eventually(lambda: len(accepted_lines(accepted)) > 5)
        in_use = accepted_lines(accepted)[-1][1]
        lost = next(process for process in pair if process.url == in_use)
        lost_at = time.time()
        lose(lost, stack)
        eventually(
            lambda: any(at > lost_at and url != in_use for at, url, _ in accepted_lines(accepted))
        )
        state = running.agent._delivery.access_points.state  # noqa: SLF001
        assert state.failovers == 1
        assert in_use in state.reason
        eventually((data_dir / FILE_NAME).exists)
        eventually(lambda: running.agent.buffered_points == 0, every_seconds=0.01)
        sent_points = running.agent._sender.counters.sent_points  # noqa: SLF001
        assert len({line for _, _, line in accepted_lines(accepted)}) >= sent_points
        assert running.agent._buffer.losses.dropped_points == 0  # noqa: SLF001

"""Measure a kill in an outage: the agent's buffer beside influxdb-client's batching WriteApi.

Both are given the same points once a second while no portal answers, and are killed (SIGKILL).
Then the portal comes, each is started again, has time to deliver, and the portal's samples are
counted. Each works as it does by default: the agent puts what it has collected on disk every five
seconds, the WriteApi keeps its batches in memory and tries again.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks import gateway as gateways
from benchmarks.loss_writer import POINTS_PER_SECOND
from benchmarks.processes import python
from collector.data_dir import load_identity
from core.clock import to_ns, utc_now

CONTENDERS = ("agent_buffer", "influxdb_client_batching")
DELIVERY_SECONDS = 10.0


def measure_loss(folder: Path, *, outage_seconds: float) -> dict[str, dict[str, float]]:
    """Return for each contender what it was given and what the portal never got."""
    gateway, start_ns = gateways.make_gateway(folder / "server"), to_ns(utc_now())
    homes = {name: folder / name for name in CONTENDERS}
    with gateways.serving(gateway):  # to enroll; then the outage begins
        for name, home in homes.items():
            home.mkdir()
            gateways.enroll(gateway, home, name=name)
    point_counts = _outage(gateway, homes, outage_seconds=outage_seconds)
    with gateways.serving(gateway):
        for writer in _start(gateway, homes, mode="deliver").values():
            writer.wait(DELIVERY_SECONDS * 3)
    windows = {_appliance_id(home): (start_ns, to_ns(utc_now())) for home in homes.values()}
    stored = gateways.stored_samples(gateway, windows)
    return {
        name: {
            "given_points": point_counts[name],
            "lost_points": point_counts[name] - stored[_appliance_id(home)],
            "lost_seconds": (point_counts[name] - stored[_appliance_id(home)]) / POINTS_PER_SECOND,
        }
        for name, home in homes.items()
    }


def _outage(
    gateway: gateways.Gateway, homes: dict[str, Path], *, outage_seconds: float
) -> dict[str, int]:
    """Let the writers write, kill them, and return how many points each was given."""
    writers = _start(gateway, homes, mode="write")
    time.sleep(outage_seconds)
    point_counts = {}
    for name, writer in writers.items():
        os.kill(writer.pid, signal.SIGKILL)
        output, _ = writer.communicate()
        point_counts[name] = len(output.split())
    return point_counts


def _start(
    gateway: gateways.Gateway, homes: dict[str, Path], *, mode: str
) -> dict[str, "subprocess.Popen[bytes]"]:
    return {
        name: subprocess.Popen(
            python("benchmarks.loss_writer", name, mode, gateway.url, str(home)),
            stdout=subprocess.PIPE,
        )
        for name, home in homes.items()
    }


def _appliance_id(home: Path) -> str:
    identity = load_identity(home)
    assert identity is not None  # noqa: S101 - enrolled by the caller
    return identity.appliance_id

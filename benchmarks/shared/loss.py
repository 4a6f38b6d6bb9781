"""A kill in an outage: the agent's buffer beside influxdb-client's batching WriteApi.

Both are given the same points once a second while no portal answers, and are killed (SIGKILL).
Then the portal comes, the agent delivers, and the portal's samples are counted; the WriteApi keeps
its batches in memory alone. Each works as it does by default: the agent puts what it has collected
on disk every five seconds.

    python -m benchmarks.shared.loss CONTENDER URL HOME    writes, with a letter for each point
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from influxdb_client.client.influxdb_client import InfluxDBClient

from benchmarks.shared.recovery import sending
from benchmarks.shared.servers import enroll_agent, python, stored_samples
from collector.config import AgentConfig
from collector.data_dir import load_identity
from collector.samples import SampleWriter
from collector.sending.delivery import build_buffer
from core.clock import to_ns, utc_now
from tests.deployment import make_deployment, serving
from tests.fixtures.polling import eventually
from timeseries.lineprotocol.encode import encode
from timeseries.points import Point

AGENT, CLIENT = "agent_buffer", "influxdb_client_batching"
POINTS_PER_SECOND = 10
BUCKET = "vedette"


def measure_loss(folder: Path, *, outage_seconds: float) -> dict[str, dict[str, float]]:
    """Return for each contender what it was given and what the portal never got."""
    gateway, start_ns = make_deployment(folder / "server"), to_ns(utc_now())
    with serving(gateway):  # to enroll; then the outage begins
        ids = {name: enroll_agent(gateway, folder / name) for name in (AGENT, CLIENT)}
    writers = {
        name: subprocess.Popen(
            python("benchmarks.shared.loss", name, gateway.url, str(folder / name)),
            stdout=subprocess.PIPE,
        )
        for name in ids
    }
    time.sleep(outage_seconds)
    given = {}
    for name, writer in writers.items():
        writer.kill()
        output, _ = writer.communicate()
        given[name] = len(output.split())
    with serving(gateway):
        config = AgentConfig(portal_urls=[gateway.url], data_dir=folder / AGENT)
        buffer = build_buffer(config, clock=utc_now)
        with sending(buffer, config):
            eventually(lambda: not buffer.points, what="the delivery")
    end_ns = to_ns(utc_now())
    stored = stored_samples(gateway, list(ids.values()), start_ns=start_ns, end_ns=end_ns)
    return {
        name: {"given_points": given[name], "lost_points": given[name] - stored[appliance_id]}
        for name, appliance_id in ids.items()
    }


def write_with_agent(url: str, home: Path) -> None:
    """Take points as the agent does: collected, and put on disk every few seconds."""
    config = AgentConfig(portal_urls=[url], data_dir=home)
    buffer = build_buffer(config, clock=utc_now)
    writer = SampleWriter(buffer, flush_interval_seconds=config.flush_interval_seconds)
    for points in _each_second():
        writer.add(points)
        writer.flush_when_due()


def write_with_client(url: str, home: Path) -> None:
    """Give the points to influxdb-client's WriteApi with its defaults."""
    identity = load_identity(home)
    token = identity.agent_token if identity else ""
    write_api = InfluxDBClient(url=url, token=token, org=BUCKET).write_api()
    for points in _each_second():
        for point in points:
            write_api.write(bucket=BUCKET, org=BUCKET, record=encode([point]))


def _each_second() -> Iterator[list[Point]]:
    """Yield a second's points, a second later, and print a letter for each."""
    while True:
        time.sleep(1.0)
        now_ns = to_ns(utc_now())
        yield [
            Point("bench", {"line": str(line)}, {"value": float(line)}, now_ns)
            for line in range(POINTS_PER_SECOND)
        ]
        print("x " * POINTS_PER_SECOND, flush=True)


if __name__ == "__main__":
    contender, portal_url, data_dir = sys.argv[1:]
    write = write_with_agent if contender == AGENT else write_with_client
    write(portal_url, Path(data_dir))

"""The process that `benchmarks.loss` kills: writes points, or delivers what a killed one has left.

    python -m benchmarks.loss_writer CONTENDER MODE URL HOME

In the mode `write` it prints a letter for each point that it has taken. `deliver` sends what HOME
holds and ends.
"""

import sys
import time
from pathlib import Path

from influxdb_client.client.influxdb_client import InfluxDBClient

from collector.config import AgentConfig
from collector.data_dir import Identity, load_identity
from collector.samples import SampleWriter
from collector.sending.delivery import build_buffer, build_delivery
from collector.sending.sender import Outcome
from core.clock import to_ns, utc_now
from timeseries.lineprotocol.encode import encode
from timeseries.points import Point

POINTS_PER_SECOND = 10
BUCKET = "vedette"


def main() -> None:
    """Run one contender until it is killed, or until it has delivered."""
    contender, mode, url, home = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    if contender == "agent_buffer":
        run = write_with_agent if mode == "write" else deliver_with_agent
        run(url, home)
    elif mode == "write":
        write_with_client(url, home)


def write_with_agent(url: str, home: Path) -> None:
    """Take points as the agent does: collected, and put on disk every few seconds."""
    config = AgentConfig(portal_urls=[url], data_dir=home)
    buffer = build_buffer(config, clock=utc_now)
    flow = SampleWriter(buffer, flush_interval_seconds=config.flush_interval_seconds)
    while True:
        flow.add(_take())
        flow.flush_when_due()


def deliver_with_agent(url: str, home: Path) -> None:
    """Send what the buffer holds."""
    config = AgentConfig(portal_urls=[url], data_dir=home)
    buffer = build_buffer(config, clock=utc_now)
    sender = build_delivery(config, _identity(home), buffer, clock=utc_now).sender
    while buffer.points:
        if buffer.wait_for_frames(1.0) and sender.send_next().outcome is Outcome.FAILED:
            time.sleep(1.0)
    sender.close()
    buffer.close()


def write_with_client(url: str, home: Path) -> None:
    """Give the points to influxdb-client's WriteApi with its defaults."""
    client = InfluxDBClient(url=url, token=_identity(home).agent_token, org=BUCKET)
    write_api = client.write_api()
    while True:
        for point in _take():
            write_api.write(bucket=BUCKET, org=BUCKET, record=encode([point]))


def _take() -> list[Point]:
    """Return a second's points, a second later, and print a letter for each."""
    time.sleep(1.0)
    now_ns = to_ns(utc_now())
    points = [
        Point("bench", {"line": str(line)}, {"value": float(line)}, now_ns)
        for line in range(POINTS_PER_SECOND)
    ]
    print("x " * len(points), flush=True)
    return points


def _identity(home: Path) -> Identity:
    identity = load_identity(home)
    assert identity is not None  # noqa: S101 - enrolled by benchmarks.loss
    return identity


if __name__ == "__main__":
    main()

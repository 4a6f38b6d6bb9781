"""An agent's samples in a real Prometheus: its outage and restarts of both lose nothing."""

from pathlib import Path

import requests

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.remote_write.settings import RemoteWriteSettings
from collector.remote_write.writer import RemoteWriter
from core.clock import NS_PER_SECOND, to_ns, utc_now
from tests.fixtures.prometheus import prometheus
from tests.servers import free_port

FLAGS = ["--web.enable-remote-write-receiver"]
ROUNDS, SERIES = 40, 50


def test_prometheus_gets_every_sample_through_outages_and_restarts(tmp_path: Path) -> None:
    port = free_port()
    settings = RemoteWriteSettings(
        url=f"http://127.0.0.1:{port}/api/v1/write", external_labels={"site": "vienna"}
    )
    start_ns = to_ns(utc_now()) // NS_PER_SECOND * NS_PER_SECOND - ROUNDS * NS_PER_SECOND

    def opened() -> tuple[DiskBuffer, RemoteWriter]:
        buffer = DiskBuffer(
            tmp_path / "buffer",
            max_bytes=2**20,
            max_age_seconds=3600,
            clock=utc_now,
            is_followed=True,
        )
        return buffer, RemoteWriter(settings, buffer, appliance="gpu-01", clock=utc_now, environ={})

    def append(buffer: DiskBuffer, rounds: range) -> None:
        for number in rounds:
            time_ns = start_ns + number * NS_PER_SECOND
            lines = [f"gpu,gpu={own} power_watts={number} {time_ns}" for own in range(SERIES)]
            buffer.append(Frame("\n".join(lines).encode(), len(lines), time_ns))

    def drain(buffer: DiskBuffer, writer: RemoteWriter) -> None:
        while buffer.wait_to_follow(0):
            assert writer.send_next() == 0

    buffer, writer = opened()
    with prometheus(tmp_path, port=port, flags=FLAGS):
        append(buffer, range(10))
        drain(buffer, writer)
    # Prometheus is away, the portal has everything, and the agent restarts.
    append(buffer, range(10, 30))
    assert writer.send_next() > 0
    while (batch := buffer.read()) is not None:
        buffer.acknowledge(batch)
    buffer.close()
    buffer, writer = opened()
    assert writer.send_next() > 0
    with prometheus(tmp_path, port=port, flags=FLAGS) as url:
        append(buffer, range(30, ROUNDS))
        drain(buffer, writer)
        answer = requests.get(
            f"{url}/api/v1/query",
            params={
                "query": 'sum by (appliance) (count_over_time(gpu_power_watts{site="vienna"}[5m]))',
                "time": str(start_ns // NS_PER_SECOND + ROUNDS),
            },
            timeout=30,
        ).json()["data"]["result"]
    assert [(row["metric"], row["value"][1]) for row in answer] == [
        ({"appliance": "gpu-01"}, str(ROUNDS * SERIES))
    ]
    assert writer.metrics()["remote_write_rejected_samples"] == 0
    buffer.close()

"""Without a portal: the same sender pushes to a real InfluxDB and a real VictoriaMetrics."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.config import AgentConfig, InfluxDBSettings
from collector.sending.delivery import build_buffer, build_delivery
from collector.sending.sender import Outcome, Sender
from core.clock import to_ns, utc_now
from tests.fixtures.databases import influxdb, influxdb_process, victoria_metrics
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import RecordingPortal, Refusal
from tests.servers import running


def opened(data_dir: Path, influxdb_settings: InfluxDBSettings) -> tuple[DiskBuffer, Sender]:
    config = AgentConfig(data_dir=data_dir / "agent", name="dgx 1", influxdb=influxdb_settings)
    buffer = build_buffer(config, clock=utc_now)
    return buffer, build_delivery(config, None, buffer, clock=utc_now).sender


def fill(buffer: DiskBuffer, *lines: str) -> int:
    """Append lines with the time of now and return it."""
    now_ns = to_ns(utc_now()) // 1_000_000 * 1_000_000
    payload = "\n".join(f"{line} {now_ns}" for line in lines).encode()
    buffer.append(Frame(payload, len(lines), now_ns))
    return now_ns


def close(buffer: DiskBuffer, sender: Sender) -> None:
    sender.close()
    buffer.close()


def asked(url: str, query: str, **auth: str) -> dict[str, object]:
    """Return what InfluxQL says."""
    reply = requests.post(
        f"{url}/query",
        params={"db": "vitals", "epoch": "ns", **auth},
        data={"q": query},
        timeout=60,
    )
    answer: dict[str, object] = reply.json()
    return answer


def test_an_influxdb_of_version_1_gets_samples_in_its_database(tmp_path: Path) -> None:
    with influxdb(tmp_path) as url:
        asked(url, "CREATE DATABASE vitals")
        settings = InfluxDBSettings(url=url, database="vitals", tags={"site": "cellar"})
        buffer, sender = opened(tmp_path, settings)
        time_ns = fill(buffer, "gpu,gpu=0 temperature_celsius=71,fan_percent=40i", "load load1=2")
        assert sender.send_next().outcome is Outcome.SENT
        assert asked(url, "SELECT * FROM gpu") == {
            "results": [
                {
                    "statement_id": 0,
                    "series": [
                        {
                            "name": "gpu",
                            "columns": [
                                *("time", "appliance", "fan_percent", "gpu", "site"),
                                "temperature_celsius",
                            ],
                            "values": [[time_ns, "dgx 1", 40, "0", "cellar", 71]],
                        }
                    ],
                }
            ]
        }
        close(buffer, sender)


def test_the_agent_command_needs_no_portal_and_no_enrollment(tmp_path: Path) -> None:
    data_dir = tmp_path / "agent"
    data_dir.mkdir()
    with influxdb(tmp_path) as url:
        asked(url, "CREATE DATABASE vitals")
        (data_dir / "agent.toml").write_text(
            f'data_dir = "{data_dir}"\nname = "dgx-1"\ninterval_seconds = 0.5\n'
            f'flush_interval_seconds = 0.2\n[influxdb]\nurl = "{url}"\ndatabase = "vitals"\n'
        )
        command = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(data_dir)]
        log_path = tmp_path / "agent.log"
        with running(command, log_path=log_path):
            eventually(
                lambda: "series" in str(asked(url, "SHOW SERIES FROM memory")),
                within_seconds=60,
                what="samples in InfluxDB",
            )
        assert "memory,appliance=dgx-1" in str(asked(url, "SHOW SERIES FROM memory"))
        assert "heartbeat" not in log_path.read_text()


def test_the_good_lines_of_a_batch_get_in_and_the_bad_one_is_put_aside(tmp_path: Path) -> None:
    with influxdb(tmp_path) as url:
        asked(url, "CREATE DATABASE vitals")
        buffer, sender = opened(tmp_path, InfluxDBSettings(url=url, database="vitals"))
        lines = [f"m,x={number} v={number}" for number in range(20)]
        fill(buffer, *lines[:7], "m,x=7 v=", *lines[7:])
        assert sender.send_next().outcome is Outcome.PARTLY_SENT
        assert sender.counters.undeliverable_lines == 1
        count = asked(url, "SELECT count(v) FROM m")
        assert "20]" in str(count)
        assert "m,x=7 v= " in (tmp_path / "agent" / "undeliverable.log").read_text()
        close(buffer, sender)


def test_a_wrong_password_and_a_missing_database_keep_the_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with influxdb(tmp_path, with_auth=True) as url:
        asked(url, "CREATE USER writer WITH PASSWORD 'right' WITH ALL PRIVILEGES")
        secret = tmp_path / "password"
        secret.write_text("wrong\n")
        settings = InfluxDBSettings(
            url=url, database="vitals", username="writer", password_file=secret
        )
        buffer, sender = opened(tmp_path, settings)
        fill(buffer, "load load1=2")
        with caplog.at_level(logging.WARNING):
            assert sender.send_next().outcome is Outcome.REFUSED
            sender.close()
            assert "authorization failed" in caplog.text
            secret.write_text("right\n")
            sender = build_delivery(
                AgentConfig(data_dir=tmp_path / "agent", influxdb=settings),
                *(None, buffer),
                clock=utc_now,
            ).sender
            assert sender.send_next().outcome is Outcome.FAILED
        assert 'database not found: "vitals"' in caplog.text.replace("\\", "")
        asked(url, "CREATE DATABASE vitals", u="writer", p="right")
        assert sender.send_next().outcome is Outcome.SENT
        close(buffer, sender)


def test_a_server_that_takes_version_2_of_the_api_is_written_through_the_client(
    tmp_path: Path,
) -> None:
    with victoria_metrics(tmp_path) as url:
        buffer, sender = opened(tmp_path, InfluxDBSettings(url=url, bucket="vitals"))
        fill(buffer, "gpu,gpu=0 temperature_celsius=71")
        assert sender.send_next().outcome is Outcome.SENT
        query = {"query": "gpu_temperature_celsius"}

        def query_series() -> list[dict[str, Any]]:
            reply = requests.get(f"{url}/api/v1/query", params=query, timeout=60)
            series: list[dict[str, Any]] = reply.json()["data"]["result"]
            return series

        [series] = eventually(query_series, what="the sample to be found")
        assert series["metric"]["appliance"] == "dgx 1"
        assert series["metric"]["gpu"] == "0"
        assert series["value"][1] == "71"
        close(buffer, sender)


def test_a_database_that_is_away_gets_its_samples_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = InfluxDBSettings(url="http://127.0.0.1:9", database="vitals")
    buffer, sender = opened(tmp_path, nowhere)
    fill(buffer, "load load1=2")
    with caplog.at_level(logging.WARNING):
        assert sender.send_next().outcome is Outcome.FAILED
    assert "Connection refused. Samples stay in the buffer." in caplog.text
    close(buffer, sender)
    with influxdb(tmp_path) as url:
        asked(url, "CREATE DATABASE vitals")
        buffer, sender = opened(tmp_path, InfluxDBSettings(url=url, database="vitals"))
        assert sender.send_next().outcome is Outcome.SENT
        assert "load" in str(asked(url, "SELECT * FROM load"))
        close(buffer, sender)


def test_a_server_that_starts_behind_its_proxy_is_asked_again_which_one_it_is(
    tmp_path: Path,
) -> None:
    with RecordingPortal() as proxy:
        proxy.refuse_always(Refusal(502, page="<html><title>502 Bad Gateway</title></html>"))
        url = proxy.url
        buffer, sender = opened(tmp_path, InfluxDBSettings(url=url, database="vitals"))
        fill(buffer, "load load1=2")
        assert sender.send_next().outcome is Outcome.FAILED
    with influxdb_process(tmp_path, port=int(url.rpartition(":")[2])):
        asked(url, "CREATE DATABASE vitals")
        assert sender.send_next().outcome is Outcome.SENT
        assert "load" in str(asked(url, "SELECT * FROM load"))
        close(buffer, sender)

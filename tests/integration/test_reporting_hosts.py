"""Hosts without the agent: the pasted configurations in the programs that they are for.

Each program runs as its Debian package installs it, with what the portal shows for a new write
token. Telegraf has no package in Debian: its configuration is read, and its output's protocol is
written by influxdb-client.
"""

import csv
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import requests
import yaml
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from core.clock import utc_now
from tests.deployment import ALICE, Deployment, api_token, make_deployment, serving
from tests.fixtures.node_exporter import node_exporter
from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running

HOUR = timedelta(hours=1)
OUTAGE_SECONDS = 8.0
# Prometheus retries every few seconds at first.
LONGEST_GAP_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Site:
    """A portal with a user's token, and what programs need to send to it."""

    deployment: Deployment
    token: str
    folder: Path

    def request(self, method: str, path: str, **details: object) -> requests.Response:
        return requests.request(
            method,
            f"{self.deployment.url}/api/v1{path}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
            **details,  # type: ignore[arg-type]
        )

    def pasted(self, program: str, appliances: str = "*") -> str:
        """Return the configuration that the portal shows for a new write token."""
        reply = self.request("POST", "/write-tokens", json={"appliance_pattern": appliances})
        assert reply.status_code == 201, reply.text
        texts = {item["name"]: item["text"] for item in reply.json()["configurations"]}
        return str(texts[program])

    def rows(self, measurement: str, host: str) -> list[dict[str, str]]:
        """Return the samples of a host, as the portal exports them."""
        reply = self.request(
            "GET",
            "/samples/export",
            params={
                "measurement": measurement,
                "since": (utc_now() - HOUR).isoformat(),
                "until": (utc_now() + HOUR).isoformat(),
            },
        )
        if reply.status_code == 404:
            return []
        ids = {item["id"]: item["name"] for item in self.appliances()}
        rows = csv.DictReader(reply.text.splitlines())
        return [row for row in rows if ids.get(row["appliance"]) == host]

    def appliances(self) -> list[dict[str, str]]:
        items: list[dict[str, str]] = self.request("GET", "/appliances").json()["items"]
        return items

    def wait_for(self, measurement: str, host: str, **fields: Callable[[float], bool]) -> None:
        """Wait for a sample of a host whose fields pass these checks."""

        def has_it() -> bool:
            return any(
                all(row.get(name) and check(float(row[name])) for name, check in fields.items())
                for row in self.rows(measurement, host)
            )

        eventually(has_it, within_seconds=90, every_seconds=0.5, what=f"{measurement} of {host}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A portal, for all tests of this file but the one that restarts it."""
    folder = tmp_path_factory.mktemp("site")
    deployment = make_deployment(folder / "portal")
    with serving(deployment):
        yield Site(deployment, api_token(deployment, ALICE), folder)


@contextmanager
def prometheus(folder: Path, pasted: str, *, target: str) -> Iterator[Path]:
    """Run Prometheus with a pasted remote_write, scraping a target; yield its log."""
    program = require_program("prometheus", package="prometheus")
    scrape = f"""
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: node
    static_configs:
      - targets: ["{target}"]
"""
    path = folder / "prometheus.yml"
    path.write_text(f"{scrape}{pasted}\n")
    log_path = folder / "prometheus.log"
    command = [
        program,
        f"--config.file={path}",
        "--enable-feature=agent",
        f"--storage.agent.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]
    with running(command, log_path=log_path):
        yield log_path


def is_percent(value: float) -> bool:
    return 0 <= value <= 100


def is_positive(value: float) -> bool:
    return value > 0


def is_any(_value: float) -> bool:
    return True


@pytest.mark.nightly
def test_prometheus_sends_a_node_exporter(site: Site) -> None:
    with node_exporter(site.folder) as target:
        with prometheus(site.folder, site.pasted("prometheus"), target=target) as log_path:
            site.wait_for("cpu", "localhost", usage_percent=is_percent, idle_percent=is_any)
            site.wait_for("memory", "localhost", used_percent=is_percent, total_bytes=is_positive)
            site.wait_for("disk", "localhost", used_percent=is_percent, free_bytes=is_positive)
            site.wait_for("load", "localhost", load1=is_any)
            site.wait_for("uptime", "localhost", uptime_seconds=is_positive)
            # Its own name, too.
            site.wait_for("node_memory_MemTotal_bytes", "localhost", value=is_positive)
        assert "non-recoverable" not in log_path.read_text()
    [host] = [item for item in site.appliances() if item["name"] == "localhost"]
    assert host["status"] == "reporting"


def test_vmagent_sends_a_node_exporter(site: Site) -> None:
    program = require_program("vmagent", package="victoria-metrics")
    folder = site.folder / "vmagent"
    folder.mkdir()
    pasted = site.pasted("vmagent", "vm-01").replace("\\\n", " ").split()[1:]
    options = [word for word in pasted if not word.startswith("-promscrape.config")]
    with node_exporter(folder) as target:
        config = {"scrape_configs": [{"job_name": "node", "scrape_interval": "1s"}]}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]  # type: ignore[assignment]
        (folder / "scrape.yml").write_text(yaml.safe_dump(config))
        command = [
            program,
            f"-promscrape.config={folder / 'scrape.yml'}",
            f"-remoteWrite.tmpDataPath={folder / 'queue'}",
            f"-httpListenAddr=127.0.0.1:{free_port()}",
            *options,
        ]
        with running(command, log_path=folder / "log"):
            site.wait_for("cpu", "vm-01", usage_percent=is_percent)
            site.wait_for("network", "vm-01", received_bytes_per_second=is_any)


def test_collectd_sends_its_readings(site: Site) -> None:
    program = require_program("collectd", package="collectd-core")
    folder = site.folder / "collectd"
    folder.mkdir()
    path = folder / "collectd.conf"
    own = f'BaseDir "{folder}"\nPIDFile "{folder}/pid"\nInterval 1\n'
    path.write_text(f"{own}{site.pasted('collectd', 'cd-01')}\n")
    with running([program, "-f", "-C", str(path)], log_path=folder / "log"):
        site.wait_for("cpu", "cd-01", usage_percent=is_percent)
        site.wait_for("memory", "cd-01", used_percent=is_percent, total_bytes=is_positive)
        site.wait_for("load", "cd-01", load1=is_any)
        site.wait_for("collectd_cpu", "cd-01", value_per_second=is_any)


def test_the_pasted_configuration_of_telegraf_is_read(site: Site) -> None:
    config = tomllib.loads(site.pasted("telegraf", "tg-01"))
    [output] = config["outputs"]["influxdb_v2"]
    assert {"cpu", "mem", "disk", "net", "system"} <= config["inputs"].keys()
    host = config["agent"]["hostname"]
    with InfluxDBClient(
        url=output["urls"][0], token=output["token"], org=output["organization"]
    ) as client:
        lines = f"mem,host={host} total=100i,available=25i\nsystem,host={host} load1=0.5,n_cpus=8i"
        with client.write_api(write_options=SYNCHRONOUS) as api:
            api.write(bucket=output["bucket"], record=lines)
    site.wait_for("memory", "tg-01", used_percent=lambda value: value == 75.0)
    site.wait_for("load", "tg-01", load1=is_any, cpu_count=is_positive)


def test_opentelemetrys_sdk_sends_metrics(site: Site) -> None:
    config = yaml.safe_load(site.pasted("otel_collector"))
    exporter = config["exporters"]["otlphttp"]
    otlp = OTLPMetricExporter(
        endpoint=f"{exporter['endpoint']}/v1/metrics", headers=exporter["headers"]
    )
    reader = PeriodicExportingMetricReader(otlp, export_interval_millis=200)
    resource = Resource({"service.name": "trainer", "host.name": "ot-01"})
    provider = MeterProvider([reader], resource=resource)
    meter = provider.get_meter("tests")
    meter.create_counter("steps").add(7, {"phase": "warm"})
    meter.create_histogram("wait", unit="s").record(0.25)
    provider.shutdown()
    row = site.rows("steps_total", "ot-01")[-1]
    assert (row["value"], row["phase"], row["job"]) == ("7", "warm", "trainer")
    assert site.rows("wait_seconds_bucket", "ot-01")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_prometheus_delivers_what_it_scraped_while_the_portal_was_away(tmp_path: Path) -> None:
    deployment = make_deployment(tmp_path / "portal")
    with ExitStack() as programs:
        with serving(deployment) as server:
            site = Site(deployment, api_token(deployment, ALICE), tmp_path)
            target = programs.enter_context(node_exporter(tmp_path))
            pasted = site.pasted("prometheus", "gpu-01")
            programs.enter_context(prometheus(tmp_path, pasted, target=target))
            site.wait_for("load", "gpu-01", load1=is_any)
            server.kill()
            server.wait()
        killed_at = time.time()
        time.sleep(OUTAGE_SECONDS)
        with serving(deployment):
            back_at = time.time()

            def times() -> list[float]:
                rows = site.rows("node_load1", "gpu-01")
                return sorted(utc_of(row["time"]) for row in rows)

            eventually(
                lambda: times()[-1:] > [back_at + 1.0],
                within_seconds=120,
                every_seconds=1.0,
                what="samples after the outage",
            )

            def has_all() -> bool:
                between = [at for at in times() if killed_at - 3 <= at <= back_at + 1]
                gaps = [after - before for before, after in pairwise(between)]
                return max(gaps, default=99.0) < LONGEST_GAP_SECONDS

            eventually(
                has_all, within_seconds=60, every_seconds=1.0, what="the samples of the outage"
            )


def utc_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

"""Metrics of Prometheus and OpenTelemetry: what it costs to receive and to scrape them.

    received   posts of 5,000 series with one sample each, of 100 metrics with eight labels: by
               remote_write to Vedette on DuckDB and to VictoriaMetrics, by OTLP to Vedette
    scraped    20 node exporters every 10 s by the agent and by Prometheus in agent mode, which send
               to a VictoriaMetrics each

What a server still does shortly after the last answer counts as its CPU time, as does what it does
for new series at the first post.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from benchmarks.shared import servers
from benchmarks.shared.document import BenchmarkError, Figures, Outcome, Promise, ratio, rounded
from benchmarks.shared.meter import MEBIBYTE, read_usage
from core.clock import NS_PER_SECOND
from plugins.registry import BUILT_IN
from tests.fixtures.databases import victoria_metrics
from tests.fixtures.node_exporter import node_exporter
from tests.fixtures.remote_write import headers, packed, request_of
from tests.servers import free_port, require_program, running

SERIES, METRICS = 5_000, 100
REMOTE_WRITE, OTLP = "vedette_by_remote_write", "vedette_by_otlp"
AGENT, PROMETHEUS = "agent", "prometheus_in_agent_mode"
CPU = "cpu_seconds_per_million_samples"
CPU_PERCENT = "cpu_percent_of_a_core"
AHEAD_SECONDS = 1800
MOST_CPU_OF_OTLP = 1.5
_OTLP_HEADERS = {"Content-Type": "application/x-protobuf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amount to send, and how long to scrape."""

    posts: int = 200
    settle_seconds: float = 12.0
    exporters: int = 20
    warm_up_seconds: float = 30.0
    window_seconds: float = 60.0


FULL = Plan()
QUICK = Plan(posts=4, settle_seconds=0.5, exporters=2, warm_up_seconds=12, window_seconds=11)
Sent = tuple[bytes, Mapping[str, str]]
Requests = Callable[[int, int], Iterator[Sent]]


def measure(plan: Plan, folder: Path) -> Outcome:
    """Load each server in turn, then scrape with both programs at once."""
    received = {
        REMOTE_WRITE: _received_by_vedette(folder / "a", plan, "/api/v1/prom/write", remote_write),
        servers.VICTORIAMETRICS: _received_by_victoriametrics(folder / "b", plan),
        OTLP: _received_by_vedette(folder / "c", plan, "/v1/metrics", otlp),
    }
    scraped = _scraped(folder, plan)
    theirs = received[servers.VICTORIAMETRICS][CPU]
    promises = [
        Promise(
            "CPU time of a million samples by remote_write, beside VictoriaMetrics'",
            ratio(received[REMOTE_WRITE][CPU], theirs),
            1.0,
            "times",
        ),
        Promise(
            "CPU time of a million samples by OTLP, beside remote_write's",
            ratio(received[OTLP][CPU], received[REMOTE_WRITE][CPU]),
            MOST_CPU_OF_OTLP,
            "times",
        ),
        Promise(
            "CPU time of the agent that scrapes 20 exporters, beside Prometheus'",
            ratio(scraped[AGENT][CPU_PERCENT], scraped[PROMETHEUS][CPU_PERCENT]),
            1.0,
            "times",
        ),
    ]
    return Outcome({"received": received, "scraped": scraped}, promises)


def _labels(number: int) -> dict[str, str]:
    """Return the labels of a series, by its number."""
    host = number // METRICS
    return {
        "cluster": "oslo-1",
        "device": f"sd{host % 8}",
        "instance": f"gpu-{host:03}.example.com:9100",
        "mode": "idle",
        "namespace": "monitoring",
        "pod": f"exporter-{host:05}",
    }


def remote_write(posts: int, start_ns: int) -> Iterator[Sent]:
    """Yield requests of remote_write, a second after each other."""
    for post in range(posts):
        time_ms = start_ns // 1_000_000 + post * 1000
        series: list[dict[str, Any]] = []
        for number in range(SERIES):
            name = {"__name__": f"app_metric_{number % METRICS}"}
            sample = {"value": number + post / 7, "timestamp": time_ms}
            labels = name | _labels(number) | {"job": "node"}
            series.append({"labels": labels, "samples": [sample]})
        yield packed(request_of(series)), headers()


def otlp(posts: int, start_ns: int) -> Iterator[Sent]:
    """Yield the same by OTLP."""
    for post in range(posts):
        request = ExportMetricsServiceRequest()
        resource_metrics = request.resource_metrics.add()
        name = resource_metrics.resource.attributes.add(key="service.name")
        name.value.string_value = "node"
        metrics = resource_metrics.scope_metrics.add().metrics
        for metric in range(METRICS):
            points = metrics.add(name=f"app_metric_{metric}").gauge.data_points
            for number in range(metric, SERIES, METRICS):
                time_ns = start_ns + post * NS_PER_SECOND
                point = points.add(
                    start_time_unix_nano=start_ns,
                    time_unix_nano=time_ns,
                    as_double=number + post / 7,
                )
                for key, text in _labels(number).items():
                    point.attributes.add(key=key).value.string_value = text
        yield request.SerializeToString(), _OTLP_HEADERS


def _received_by_vedette(folder: Path, plan: Plan, path: str, made: Requests) -> Figures:
    with servers.vedette(folder, appliances=1) as server:
        authorization = {"Authorization": server.senders[0].replace("Token", "Bearer")}
        return _loaded(
            server.pid, f"{server.url}{path}", made, plan=plan, sender_headers=authorization
        )


def _received_by_victoriametrics(folder: Path, plan: Plan) -> Figures:
    with servers.victoriametrics(folder) as server:
        return _loaded(
            server.pid, f"{server.url}/api/v1/write", remote_write, plan=plan, sender_headers={}
        )


def _loaded(
    pid: int, url: str, made: Requests, *, plan: Plan, sender_headers: Mapping[str, str]
) -> Figures:
    """Post requests made before, one after the other; return what the server used."""
    requests_made = list(made(plan.posts, int(time.time() + AHEAD_SECONDS) * NS_PER_SECOND))
    with requests.Session() as http:
        before, delays = read_usage(pid), list[float]()
        for body, sent_headers in requests_made:
            began = time.perf_counter()
            reply = http.post(
                url, data=body, headers={**sent_headers, **sender_headers}, timeout=120
            )
            delays.append(time.perf_counter() - began)
            if not reply.ok:
                raise BenchmarkError(f"{url} answers {reply.status_code}: {reply.text[:300]}")
        time.sleep(plan.settle_seconds)
        after = read_usage(pid)
    cpu_seconds = after.cpu_seconds - before.cpu_seconds
    return {
        CPU: rounded(cpu_seconds * 1e6 / (plan.posts * SERIES)),
        "ack_milliseconds_p50": rounded(sorted(delays)[len(delays) // 2] * 1000),
        "resident_mebibytes": rounded(after.resident_bytes / MEBIBYTE),
    }


def _scraped(folder: Path, plan: Plan) -> dict[str, Figures]:
    with ExitStack() as stack:
        exporter = stack.enter_context(node_exporter(folder))
        # One exporter under as many addresses: its work is not measured.
        urls = [f"http://{exporter}/metrics?target={number}" for number in range(plan.exporters)]
        stores = {name: folder / f"store-{name}" for name in (AGENT, PROMETHEUS)}
        addresses = {}
        for name, store_folder in stores.items():
            store_folder.mkdir()
            addresses[name] = stack.enter_context(victoria_metrics(store_folder))
        pids = {
            AGENT: stack.enter_context(_agent(folder, urls, store=addresses[AGENT])),
            PROMETHEUS: stack.enter_context(
                _prometheus(folder, exporter, plan.exporters, store=addresses[PROMETHEUS])
            ),
        }
        time.sleep(plan.warm_up_seconds)
        before = {name: read_usage(pid) for name, pid in pids.items()}
        time.sleep(plan.window_seconds)
        after = {name: read_usage(pid) for name, pid in pids.items()}
        series = {name: _series(address) for name, address in addresses.items()}
    return {
        name: {
            CPU_PERCENT: rounded(
                100
                * (after[name].cpu_seconds - before[name].cpu_seconds)
                / (after[name].at_seconds - before[name].at_seconds)
            ),
            "resident_mebibytes": rounded(after[name].resident_bytes / MEBIBYTE),
            "series": float(series[name]),
        }
        for name in pids
    }


@contextmanager
def _agent(folder: Path, urls: Sequence[str], *, store: str) -> Iterator[int]:
    home = folder / AGENT
    home.mkdir()
    names = BUILT_IN.keys() - {"prometheus"}
    others = "".join(f"[plugins.{name}]\nenabled = false\n" for name in sorted(names))
    targets = "".join(
        f'[[plugins.prometheus.targets]]\nurl = "{url}"\nlabels = {{ target = "{number}" }}\n'
        for number, url in enumerate(urls)
    )
    (home / "agent.toml").write_text(
        f'data_dir = "{home}"\nname = "bench"\n[influxdb]\nurl = "{store}"\nbucket = "bench"\n'
        f"{others}[plugins.prometheus]\ninterval_seconds = 10\ndocker = false\n{targets}"
    )
    command = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(home)]
    with running(command, log_path=folder / "agent.log") as process:
        yield process.pid


@contextmanager
def _prometheus(folder: Path, exporter: str, count: int, *, store: str) -> Iterator[int]:
    program = require_program("prometheus", package="prometheus")
    jobs = [
        {
            "job_name": f"target-{number}",
            "params": {"target": [str(number)]},
            "static_configs": [{"targets": [exporter], "labels": {"target": str(number)}}],
        }
        for number in range(count)
    ]
    config = {
        "global": {"scrape_interval": "10s"},
        "scrape_configs": jobs,
        "remote_write": [{"url": f"{store}/api/v1/write"}],
    }
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    command = [
        program,
        f"--config.file={path}",
        "--enable-feature=agent",
        f"--storage.agent.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]
    with running(command, log_path=folder / "prometheus.log") as process:
        yield process.pid


def _series(store: str) -> int:
    """Return how many series of the node exporter a store has."""
    query = {"query": 'count({__name__=~"node_.*"})'}
    reply = requests.get(f"{store}/api/v1/query", params=query, timeout=60)
    result = reply.json()["data"]["result"]
    if not result:
        raise BenchmarkError("nothing was scraped: see the logs of agent and Prometheus")
    return int(result[0]["value"][1])

"""The prometheus plugin: its parser beside the reference, relabeling, targets, and limits."""

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from core.clock import to_ns
from plugins.base import PluginContext, PluginUnavailableError
from plugins.containers.engine import ListedContainer
from plugins.prometheus.discovery import TargetConfig, container_targets
from plugins.prometheus.exposition import ExpositionError, parse_line, sample_lines
from plugins.prometheus.reader import PrometheusConfig, PrometheusPlugin
from plugins.prometheus.relabeling import Action, RelabelRule, relabeled
from tests.fixtures.node_exporter import node_exporter
from timeseries.points import Point

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB_ID = "0199f0aa-1111-7222-8333-444455556666"
TEXT = r"""
# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{ method = "post" , code="400", }    3
msdos_access_seconds{path="C:\\DIR\\FILE.TXT",error="No file:\n\"FILE.TXT\""} 1.458255915e9
metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero } # {x=\"1\"} 3"} +Inf -3982045
rpc_duration_seconds{quantile="0.01"} 3102
rpc_duration_seconds{quantile="0.99"} NaN
rpc_duration_seconds_sum 1.7560473e+07
"""
OPENMETRICS = """# TYPE foo histogram
foo_bucket{le="0.1"} 8 # {} 0.054
foo_bucket{le="+Inf"} 17 # {trace_id="KOO5S4vxi0o"} 0.67 1520879607.789
foo_count 17
foo_sum 324789.3
# TYPE bar counter
bar_total{a="b"} 17.0 1520879607.5
# EOF
"""


def samples_of(text: str) -> list[tuple[str, dict[str, str], float]]:
    lines = [parse_line(line) for line in sample_lines(text)]
    return [(line.name, dict(line.labels), line.value) for line in lines]


@pytest.mark.parametrize(
    ("text", "reference"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)]
)
def test_samples_are_those_of_the_reference_parser(text: str, reference: Any) -> None:  # noqa: ANN401
    expected = [
        (sample.name, sample.labels, float(sample.value))
        for family in reference(text)
        for sample in family.samples
    ]
    # NaN is not equal to itself.
    assert repr(samples_of(text)) == repr(expected)


@pytest.mark.parametrize(
    "line", ["", "9name 1", "name", 'name{a="b" 1', "name{a=b} 1", "name one", 'name{a="b"}x 1']
)
def test_what_is_no_sample_is_an_error(line: str) -> None:
    with pytest.raises(ExpositionError):
        parse_line(line)


SWAP = {"target_label": "y", "source_labels": ["job"], "regex": "(.)(.*)"}
# As Prometheus' own test has it.
HASH = {"action": "hashmod", "source_labels": ["c"], "target_label": "d"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"action": "keep", "source_labels": ["job"], "regex": "no.*"}, {}),
        ({"action": "keep", "source_labels": ["job"], "regex": "o.*"}, None),
        ({"action": "drop", "source_labels": ["job", "x"], "regex": "node;1"}, None),
        (SWAP | {"replacement": "$2${1}$$"}, {"y": "oden$"}),
        ({"target_label": "x", "source_labels": ["x"], "replacement": ""}, {"x": None}),
        ({"target_label": "y", "source_labels": ["x"], "regex": "2"}, {}),
        ({"action": "labelmap", "regex": "jo(.)", "replacement": "l_$1"}, {"l_b": "node"}),
        ({"action": "labeldrop", "regex": "jo."}, {"job": None}),
        ({"action": "labelkeep", "regex": "jo."}, {"x": None}),
        ({"action": "uppercase", "source_labels": ["job"], "target_label": "job"}, {"job": "NODE"}),
        (HASH | {"modulus": 1000}, {"d": "976"}),
    ],
)
def test_relabeling(rule: dict[str, Any], expected: dict[str, str | None] | None) -> None:
    labels = {"job": "node", "x": "1"}
    if rule.get("action") == "hashmod":
        labels = {"a": "foo", "b": "bar", "c": "baz"}
    changed = relabeled(labels, [msgspec.convert(rule, RelabelRule)])
    if expected is None:
        assert changed is None
        return
    merged = {**labels, **expected}
    assert changed == {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize("rule", [{"regex": "("}, {"action": "replace"}])
def test_an_invalid_rule_is_an_error(rule: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(rule, RelabelRule)


def test_containers_with_metrics_are_targets() -> None:
    listed = [
        {
            "Id": "1" * 64,
            "Image": "vllm",
            "State": "running",
            "Names": ["/job"],
            "Labels": {"io.vedette.job": JOB_ID, "io.vedette.port.8000": "metrics"},
            "Ports": [{"PrivatePort": 8000, "PublicPort": 32768, "IP": "127.0.0.1"}],
        },
        {
            "Id": "2" * 64,
            "Image": "dcgm",
            "State": "running",
            "Names": ["/dcgm"],
            "Labels": {"prometheus.io/scrape": "true", "prometheus.io/port": "9400"},
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
        },
        {
            "Id": "3" * 64,
            "Image": "web",
            "State": "running",
            "Labels": {"io.vedette.port.80": "web"},
        },
        {
            "Id": "4" * 64,
            "Image": "gone",
            "State": "exited",
            "Labels": {"prometheus.io/scrape": "true", "prometheus.io/port": "9400"},
            "HostConfig": {"NetworkMode": "host"},
        },
    ]
    containers = msgspec.convert(listed, list[ListedContainer])
    targets = list(container_targets(containers))
    assert [(t["__address__"], t["job"], t["container"]) for t in targets] == [
        ("127.0.0.1:32768", JOB_ID, "job"),
        ("172.17.0.2:9400", "dcgm", "dcgm"),
    ]


@contextmanager
def serving(body: str, *, content_type: str = "text/plain", status: int = 200) -> Iterator[str]:
    """Serve an exposition, compressed; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            packed = gzip.compress(body.encode())
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(packed)))
            self.end_headers()
            self.wfile.write(packed)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def read(config: PrometheusConfig, *, times: int = 1) -> list[Point]:
    """Return the last of some readings."""
    plugin = PrometheusPlugin(config, PluginContext(docker_url="unix:///nowhere"))
    try:
        for _ in range(times):
            points = list(plugin.gather(NOW))
    finally:
        plugin.close()
    return points


def config_of(url: str, **settings: Any) -> PrometheusConfig:  # noqa: ANN401
    target = TargetConfig(url=url, labels={"job": "app"})
    return PrometheusConfig(targets=(target,), **settings)


@pytest.mark.parametrize("times", [1, 3])
def test_samples_get_the_labels_of_their_target(times: int) -> None:
    with serving('m{job="own",a="b"} 5\nm{a="c"} 6\ncpu 1\nnan NaN\nold 2 1000\n') as url:
        points = read(config_of(url), times=times)
        instance = url.removeprefix("http://").removesuffix("/metrics")
    values = [(p.measurement, dict(p.tags), p.fields["value"], p.time_ns) for p in points]
    target = {"instance": instance, "job": "app"}
    at = to_ns(NOW)
    assert values[:4] == [
        ("m", {**target, "exported_job": "own", "a": "b"}, 5.0, at),
        ("m", {**target, "a": "c"}, 6.0, at),
        # The name of one of our measurements.
        ("prometheus_cpu", target, 1.0, at),
        ("old", target, 2.0, 1_000_000_000),
    ]
    assert [name for name, *_ in values[4:]] == [
        "up",
        "scrape_duration_seconds",
        "scrape_samples_scraped",
    ]
    assert values[4][2] == 1.0


def test_samples_are_relabeled() -> None:
    rules = (
        RelabelRule(action=Action.DROP, source_labels=("__name__",), regex="go_.*"),
        RelabelRule(
            source_labels=("a",), target_label="__name__", regex="(x)", replacement="re_$1"
        ),
    )
    with serving('go_threads 5\nm{a="x"} 6\n') as url:
        points = read(config_of(url, metric_relabel=rules))
    assert [point.measurement for point in points[:-3]] == ["re_x"]


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({"max_samples": 2}, "a 1\nb 2\nc 3\n"),
        ({"max_body_bytes": 1024}, "a 1\n" * 1000),
        ({"max_labels": 3}, 'a{x="1",y="2"} 1\n'),
        ({"max_label_bytes": 100}, f'a{{x="{"y" * 101}"}} 1\n'),
        ({}, "a 1\nbroken line\n"),
    ],
)
def test_a_scrape_above_a_limit_stores_nothing(settings: dict[str, Any], body: str) -> None:
    with serving(body) as url:
        points = read(config_of(url, **settings))
    assert {point.measurement: point.fields["value"] for point in points} == {
        "up": 0.0,
        "scrape_duration_seconds": pytest.approx(0, abs=60),
        "scrape_samples_scraped": 0.0,
    }


def test_a_target_that_is_away_is_down() -> None:
    with serving("a 1", status=500) as url:
        assert read(config_of(url))[0].fields["value"] == 0.0
    assert read(config_of(url))[0].fields["value"] == 0.0


def test_openmetrics_has_times_in_seconds() -> None:
    with serving(OPENMETRICS, content_type="application/openmetrics-text; version=1.0.0") as url:
        points = read(config_of(url))
    times = {point.measurement: point.time_ns for point in points}
    assert times["bar_total"] == 1_520_879_607_500_000_000
    assert times["foo_sum"] == to_ns(NOW)


def test_files_have_targets_and_keep_them_while_they_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    with serving("a 1\n") as url:
        address = url.removeprefix("http://").removesuffix("/metrics")
        path.write_text(json.dumps([{"targets": [address], "labels": {"rack": "b12"}}]))
        (tmp_path / "more.yml").write_text(f"- targets: ['{address}']\n  labels: {{rack: b13}}\n")
        patterns = (str(tmp_path / "*.json"), str(tmp_path / "*.yml"))
        plugin = PrometheusPlugin(PrometheusConfig(files=patterns, docker=False), PluginContext())
        for text in (None, "{broken"):
            if text is not None:
                path.write_text(text)
            racks = {point.tags["rack"] for point in plugin.gather(NOW) if point.measurement == "a"}
            assert racks == {"b12", "b13"}
        path.unlink()
        racks = {point.tags["rack"] for point in plugin.gather(NOW) if point.measurement == "a"}
        assert racks == {"b13"}
        plugin.close()


def test_without_targets_there_is_nothing_to_read() -> None:
    plugin = PrometheusPlugin(PrometheusConfig(), PluginContext(docker_url="unix:///nowhere"))
    with pytest.raises(PluginUnavailableError):
        plugin.gather(NOW)


def test_the_node_exporter_of_debian_is_scraped(tmp_path: Path) -> None:
    with node_exporter(tmp_path) as address:
        for times in (1, 2):
            points = read(config_of(f"http://{address}/metrics"), times=times)
            by_name = {point.measurement: point for point in points}
            assert by_name["up"].fields == {"value": 1.0}
            assert float(by_name["node_memory_MemTotal_bytes"].fields["value"]) > 0
            assert by_name["node_cpu_seconds_total"].tags["job"] == "app"
            assert all(math.isfinite(float(point.fields["value"])) for point in points)

"""Prometheus rules that have an equivalent are converted; what has none is named."""

import pytest
import yaml

from alerting.compatibility.prometheus_rules import Metric, convert_rules

METRICS = [
    Metric("gpu", "temperature_celsius", ["tenant", "appliance", "gpu"]),
    Metric("disk", "free_bytes", ["appliance", "mount"]),
]
FILTERED = 'avg(gpu.temperature_celsius{appliance="a", gpu="0"|"1"})'
FILE = """
groups:
  - name: gpus
    rules:
      - alert: Hot
        expr: >-
          avg by (gpu) (
          avg_over_time(gpu_temperature_celsius{gpu=~"0|1", appliance="a"}[5m])) > 85
        for: 2m
        labels: {severity: warning, team: infra}
      - alert: Hot
        expr: avg(avg_over_time(gpu_temperature_celsius[1h30m])) by (gpu) > 95
        labels: {severity: critical}
        annotations: {summary: It burns}
      - alert: Full
        expr: min_over_time(disk_free_bytes[1d]) < 1e9
        keep_firing_for: 1w
      - alert: Spiky
        expr: quantile_over_time(0.95, gpu_temperature_celsius[5m]) > 90
"""


def test_rules_with_an_equivalent_are_converted() -> None:
    entries, left_out = convert_rules(yaml.safe_load(FILE)["groups"], METRICS)
    assert [(entry["name"], entry["expression"]) for entry in entries] == [
        (
            "Hot",
            f"{FILTERED} over 5m by appliance, gpu > 85 °C for 2m",
        ),
        (
            "Hot (critical)",
            "avg(gpu.temperature_celsius) over 1h30m by appliance, gpu critical > 95 °C",
        ),
        (
            "Full",
            "min(disk.free_bytes) over 1d by appliance, mount < 1000000000 B keep_firing_for 7d",
        ),
        ("Spiky", "p95(gpu.temperature_celsius) over 5m by appliance, gpu > 90 °C"),
    ]
    assert left_out == [
        "Hot: converted without label team",
        "Hot (critical): converted without annotations",
    ]


CONVERTED = """
- expr: >-
    last_over_time(disk_free_bytes{mount!="/", mount=~"/data.+", appliance!~"x|y"}[1m]) <= 5
  text: >-
    last(disk.free_bytes{mount!="/", mount=~"/data.+", appliance!~"x|y"}) over 1m
    by appliance, mount <= 5 B
- expr: >-
    avg by (gpu) (avg_over_time(gpu_temperature_celsius[5m]))
    >= 1.5 * avg by (gpu) (avg_over_time(gpu_temperature_celsius[1d] offset 1d))
  text: >-
    avg(gpu.temperature_celsius) over 5m / avg(gpu.temperature_celsius) over 1d offset 1d
    by appliance, gpu >= 1.5
- expr: >-
    max_over_time(gpu_temperature_celsius[5m]) - min_over_time(gpu_temperature_celsius[5m]) != 0
    and on (appliance) min_over_time(disk_free_bytes{mount="/"}[5m]) < 9
  text: >-
    max(gpu.temperature_celsius) over 5m - min(gpu.temperature_celsius) over 5m
    by appliance, gpu != 0 °C
    and min(disk.free_bytes{mount="/"}) over 5m by appliance < 9 B
"""


@pytest.mark.parametrize("conversion", yaml.safe_load(CONVERTED))
def test_matchers_conditions_and_comparisons_are_converted(conversion: dict[str, str]) -> None:
    entries, left_out = convert_rules(
        [{"rules": [{"alert": "A", "expr": conversion["expr"]}]}], METRICS
    )
    assert (entries, left_out) == ([{"name": "A", "expression": conversion["text"]}], [])


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"record": "x", "expr": "1"}, "only alerting rules"),
        ({"expr": "gpu_temperature_celsius > 85"}, "_over_time"),
        ({"expr": "max by (gpu) (avg_over_time(gpu_temperature_celsius[5m])) > 1"}, "max of avg"),
        ({"expr": "stddev_over_time(gpu_temperature_celsius[5m]) > 1"}, "stddev_over_time"),
        ({"expr": "avg_over_time(gpu_temperature_celsius[5m])"}, "compare with a number"),
        ({"expr": "avg_over_time(gpu_temperature_celsius[5m] offset 1d) > 1"}, "offset"),
        ({"expr": "avg_over_time(gpu_temperature_celsius[5m]) > 1 unless x"}, "unless x"),
        ({"expr": 'avg_over_time(disk_free_bytes{mount=~"["}[5m]) > 1'}, "invalid pattern"),
        ({"expr": "avg_over_time(node_load1[5m]) > 1"}, "'node_load1'"),
        ({"expr": "avg_over_time(disk_free_bytes{mount!='/'}[5m]) > 1"}, "matchers"),
        ({"expr": "avg_over_time(disk_free_bytes[500ms]) > 1"}, "500ms"),
        ({"expr": "avg_over_time(disk_free_bytes[5m]) > 1", "limit": 3}, "'limit'"),
    ],
)
def test_a_rule_without_an_equivalent_is_named(rule: dict[str, object], reason: str) -> None:
    rule = rule if "record" in rule else {"alert": "A", **rule}
    entries, (left_out,) = convert_rules([{"rules": [rule]}], METRICS)
    assert entries == []
    assert reason in left_out

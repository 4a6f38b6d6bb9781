"""Prometheus rules that have an equivalent are converted; what has none is named."""

import pytest
import yaml

from alerting.prometheus_rules import Metric, convert_rules

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
    assert [(one["name"], one["expression"]) for one in entries] == [
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


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"record": "x", "expr": "1"}, "only alerting rules"),
        ({"expr": "gpu_temperature_celsius > 85"}, "_over_time"),
        ({"expr": "max by (gpu) (avg_over_time(gpu_temperature_celsius[5m])) > 1"}, "max of avg"),
        ({"expr": "stddev_over_time(gpu_temperature_celsius[5m]) > 1"}, "stddev_over_time"),
        ({"expr": "avg_over_time(gpu_temperature_celsius[5m]) >= 1"}, "> or <"),
        ({"expr": "avg_over_time(node_load1[5m]) > 1"}, "'node_load1'"),
        ({"expr": "avg_over_time(disk_free_bytes{mount!='/'}[5m]) > 1"}, "matchers"),
        ({"expr": 'avg_over_time(disk_free_bytes{mount!="/"}[5m]) > 1'}, 'mount!="/"'),
        ({"expr": "avg_over_time(disk_free_bytes[500ms]) > 1"}, "500ms"),
        ({"expr": "avg_over_time(disk_free_bytes[5m]) > 1", "limit": 3}, "'limit'"),
    ],
)
def test_a_rule_without_an_equivalent_is_named(rule: dict[str, object], reason: str) -> None:
    rule = rule if "record" in rule else {"alert": "A", **rule}
    entries, (left_out,) = convert_rules([{"rules": [rule]}], METRICS)
    assert entries == []
    assert reason in left_out

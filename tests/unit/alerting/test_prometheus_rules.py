"""Prometheus rules that have an equivalent are converted; what has none is named."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from alerting.compatibility.prometheus_rules import Metric, convert_rules
from alerting.language.checks import rule_errors
from alerting.language.text import parse_expression, rule_expression

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
        labels: {severity: warning}
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
    assert [(entry.name, entry.expression) for entry in entries] == [
        ("Hot", f"{FILTERED} over 5m by appliance, gpu > 85 °C for 2m"),
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
    assert entries[1].annotation == "It burns"
    assert left_out == []


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
    assert ([(entry.name, entry.expression) for entry in entries], left_out) == (
        [("A", conversion["text"])],
        [],
    )


IN_PROMQL = """
- rule:
    alert: A
    expr: |
      sum by (job) (rate(http_requests_total{code=~"5.."}[5m]))
        / sum by (job) (rate(http_requests_total[5m])) > 0.05
    for: 10m
    labels: {severity: critical, team: web}
    annotations:
      summary: '{{ $labels.job }} fails: {{ $value | humanizePercentage }}'
      description: 'In {{ printf "%.2f" $value }} of {{ $labels.items }}'
  text: >-
    promql(sum by (job) (rate(http_requests_total{code=~"5.."}[5m]))
    / sum by (job) (rate(http_requests_total[5m])) > 0.05) critical labels {team="web"} for 10m
  annotation: |-
    {{ labels.job }} fails: {{ value|humanizePercentage }}
    In {{ value|printf("%.2f") }} of {{ labels["items"] }}
- rule: {alert: A, expr: up == 0, keep_firing_for: 5m}
  text: promql(up == 0) keep_firing_for 5m
# About metrics of node_exporter and dcgm-exporter: ours are asked for.
- rule:
    alert: A
    expr: '100 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[2m])) * 100 > 80'
    annotations: {summary: '{{ $labels.instance }} is busy'}
  text: >-
    promql(100 - avg by (appliance)((avg_over_time(cpu_idle_percent[120s]) / 100)) * 100 > 80)
  annotation: "{{ labels.appliance }} is busy"
- rule:
    alert: A
    expr: >-
      node_filesystem_avail_bytes{fstype!~"tmpfs|ramfs",mountpoint="/"}
      / node_filesystem_size_bytes{fstype!~"tmpfs|ramfs",mountpoint="/"} < 0.1
  text: promql(disk_free_bytes{mount="/"} / disk_total_bytes{mount="/"} < 0.1)
- rule: {alert: A, expr: 'time() - node_boot_time_seconds < 600'}
  text: promql(time() - (time() - uptime_uptime_seconds) < 600)
# Half of it has no equivalent.
- rule: {alert: A, expr: node_load1 / node_unknown > 1}
  text: promql(node_load1 / node_unknown > 1)
"""


@pytest.mark.parametrize("conversion", yaml.safe_load(IN_PROMQL))
def test_other_rules_become_rules_in_promql(conversion: dict[str, Any]) -> None:
    (entry,), left_out = convert_rules([{"rules": [conversion["rule"]]}], METRICS)

    assert (entry.expression, left_out) == (conversion["text"], [])
    assert entry.annotation == conversion.get("annotation", "")
    request = replace(parse_expression(entry.expression), name="A", annotation=entry.annotation)
    assert rule_errors(request) == {}
    assert rule_expression(request) == entry.expression


def test_rules_that_share_a_name_get_others() -> None:
    rules = [{"alert": "A", "expr": f"up == {number}"} for number in range(4)]

    entries, _ = convert_rules([{"rules": rules[:2]}, {"rules": rules[2:]}], METRICS)

    assert [entry.name for entry in entries] == ["A", "A (warning)", "A (2)", "A (3)"]


def test_what_is_lost_is_named() -> None:
    rule = {
        "alert": "A",
        "expr": "up == 0",
        "labels": {"host": "{{ $labels.instance }}", "team": "web"},
        "annotations": {
            "summary": "{{ range query `up` }}x{{ end }}",
            "description": "down",
            "dashboard": "x",
        },
    }

    (entry,), left_out = convert_rules([{"rules": [rule]}], METRICS)

    assert entry.annotation == "down"
    (text,) = left_out
    assert text == (
        "A: converted without annotation summary ({{ range query `up` }} has no equivalent), "
        "annotation dashboard, label host (a template)"
    )


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"record": "x", "expr": "1"}, "a recording rule"),
        ({"alert": "A", "expr": "up[5m]"}, "instant vector or a scalar"),
        ({"alert": "A", "expr": "rate(up)"}, "expected type matrix"),
        ({"alert": "A", "expr": "holt_winters(up[5m], 0.5, 0.5) > 1"}, "'holt_winters'"),
        ({"alert": "A", "expr": "up @ 1 > 1"}, "@ is not supported"),
        ({"alert": "A", "expr": 'up{mount=~"["} > 1'}, "illegal regex"),
        ({"alert": "A", "expr": "up > 1", "for": "40d"}, "'for'"),
        ({"alert": "A", "expr": "up > 1", "limit": 3}, "'limit'"),
        ({"alert": "A", "expr": "up > 1", "labels": {"rule": "x"}}, "the label 'rule'"),
    ],
)
def test_a_rule_without_an_equivalent_is_named(rule: dict[str, object], reason: str) -> None:
    entries, (left_out,) = convert_rules([{"rules": [rule]}], METRICS)
    assert entries == []
    assert reason in left_out

"""The questions in the peers' own languages ask for the same spans and tags as ours."""

from benchmarks.queries import questions
from benchmarks.queries_data import History
from benchmarks.queries_native import Answer, influxql, metricsql

# 2023-11-14 22:13 UTC
HISTORY = History(
    appliances=100, minutes=60, tenant_hours=24, end_ns=1_700_000_000_000_000_000 - 20 * 10**9
)
ASKED = questions(HISTORY)


def test_the_fleet_tier_in_influxql() -> None:
    assert influxql(ASKED["fleet"]) == (
        'SELECT mean("utilization_percent") FROM "gpu" '
        "WHERE \"tenant\" = '01a1fe98-0000-7000-8000-000000000000' "
        "AND time >= 1699978380000000000 AND time < 1699999980000000000 "
        "GROUP BY time(60000000000ns)"
    )


def test_raw_samples_are_asked_for_as_such() -> None:
    text = influxql(ASKED["appliance"])
    assert text.startswith('SELECT "utilization_percent" FROM "gpu" WHERE "appliance" = ')
    assert text.endswith(' GROUP BY "gpu"')


def test_the_latest_of_every_gpu_in_influxql() -> None:
    assert influxql(ASKED["latest"]) == (
        'SELECT last("temperature_celsius") FROM "gpu" WHERE time >= 1699999680000000000 '
        'GROUP BY "tenant", "appliance", "gpu"'
    )


def test_metricsql_ends_its_windows_a_millisecond_before_ours() -> None:
    path, asked = metricsql(ASKED["fleet"])
    assert path == "/api/v1/query_range"
    assert asked["query"] == (
        "avg(avg_over_time("
        'gpu_utilization_percent{tenant="01a1fe98-0000-7000-8000-000000000000"}[60s]))'
    )
    assert (asked["start"], asked["end"], asked["step"]) == (
        "1699978439.999", "1699999979.999", "60s",
    )  # fmt: skip


def test_percentiles_over_several_gpus_come_from_buckets_in_metricsql() -> None:
    path, asked = metricsql(ASKED["p95"])
    assert path == "/api/v1/query"
    assert asked["query"] == (
        "histogram_quantile(0.95, "
        "sum(histogram_over_time(gpu_power_watts{}[3600s])) by (appliance, vmrange))"
    )


def test_an_answer_is_known_by_its_size_and_mean() -> None:
    assert Answer.of([[1.0, 2.0], [6.0]], series=2) == Answer(2, 3, 3.0)
    assert Answer.of([], series=0) == Answer(0, 0, 0.0)

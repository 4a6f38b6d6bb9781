import pytest

from timeseries.victoriametrics.flags import DAY_MS, FIRST_MS, parse_flags

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "days"),
    [("30d", 30), ("2w", 14), ("1y", 365), ("48h", 2), ("3", 93), ("1.5y", 547.5)],
)
def test_the_retention_is_read_in_every_unit(given: str, days: float) -> None:
    flags = parse_flags(f'-httpListenAddr=":8428"\n-retentionPeriod="{given}"\n')

    assert flags.retention_ms == days * DAY_MS


def test_the_default_retention_is_a_month() -> None:
    assert parse_flags('-httpListenAddr=":8428"').retention_ms == 31 * DAY_MS


def test_the_times_kept_end_two_days_ahead_and_begin_with_the_retention() -> None:
    month = parse_flags('-retentionPeriod="30d"')

    assert month.kept_ms(NOW_MS) == (NOW_MS - 30 * DAY_MS, NOW_MS + 2 * DAY_MS)
    assert parse_flags('-retentionPeriod="100y"').kept_ms(NOW_MS)[0] == FIRST_MS


def test_a_server_that_keeps_its_options_to_itself_is_used_with_a_warning() -> None:
    flags = parse_flags(None)

    assert flags.kept_ms(NOW_MS)[0] == FIRST_MS
    assert flags.faults == ()
    assert "does not show its options" in flags.warnings[0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ('-influxSkipMeasurement="true"', "-influxSkipMeasurement"),
        ('-influxSkipSingleField="true"', "-influxSkipSingleField"),
        ('-influxMeasurementFieldSeparator="."', "-influxMeasurementFieldSeparator=."),
    ],
)
def test_an_option_that_changes_the_names_is_a_fault(given: str, named: str) -> None:
    (fault,) = parse_flags(given).faults

    assert named in fault


def test_a_missing_deduplication_is_warned_of() -> None:
    assert "-dedup.minScrapeInterval=1ms" in parse_flags("").warnings[0]
    assert parse_flags('-dedup.minScrapeInterval="1ms"').warnings == ()

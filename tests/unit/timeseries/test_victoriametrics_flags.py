import pytest

from timeseries.victoriametrics.client import DAY_MS, FIRST_MS, parse_flags

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


def test_accepted_times_start_with_the_retention_and_end_two_days_ahead() -> None:
    month = parse_flags('-retentionPeriod="30d"')

    assert month.accepted_ms(NOW_MS) == (NOW_MS - 30 * DAY_MS, NOW_MS + 2 * DAY_MS)
    assert parse_flags('-retentionPeriod="100y"').accepted_ms(NOW_MS)[0] == FIRST_MS


def test_a_server_that_hides_its_flags_gives_a_warning() -> None:
    flags = parse_flags(None)

    assert flags.accepted_ms(NOW_MS)[0] == FIRST_MS
    assert flags.errors == ()
    assert "does not show its flags" in flags.warnings[0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ('-influxSkipMeasurement="true"', "-influxSkipMeasurement"),
        ('-influxSkipSingleField="true"', "-influxSkipSingleField"),
        ('-influxMeasurementFieldSeparator="."', "-influxMeasurementFieldSeparator=."),
    ],
)
def test_a_flag_that_changes_names_is_an_error(given: str, named: str) -> None:
    (error,) = parse_flags(given).errors

    assert named in error


def test_missing_deduplication_gives_a_warning() -> None:
    assert "-dedup.minScrapeInterval=1ms" in parse_flags("").warnings[0]
    assert parse_flags('-dedup.minScrapeInterval="1ms"').warnings == ()

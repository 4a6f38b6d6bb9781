from pathlib import Path

import pytest

from core.errors import ConfigurationError
from timeseries.store_url import parse_store_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "influxdb://ada:hunter2@db:8086/fleet?rp=week",
            "influxdb://ada:***@db:8086/fleet?rp=week",
        ),
        ("influxdbs://ada@db/fleet", "influxdbs://ada@db/fleet"),
        (
            "influxdb://db:8086/?org=acme&bucket=b&token=s3cret",
            "influxdb://db:8086/?org=acme&bucket=b&token=***",
        ),
        ("victoriametrics://[::1]:8428", "victoriametrics://[::1]:8428"),
        ("duckdb:///var/samples.duckdb", "duckdb:///var/samples.duckdb"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert parse_store_url(url).redacted == shown


def test_two_spellings_of_a_file_are_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    relative = parse_store_url("duckdb:///var/../samples.duckdb")
    absolute = parse_store_url(f"duckdb:///{tmp_path}/samples.duckdb")

    assert relative.canonical == absolute.canonical


def test_the_embedded_store_may_have_its_files_elsewhere() -> None:
    url = parse_store_url("duckdb:///var/samples.duckdb?files=s3://bucket/prefix")

    assert (url.file, url.files) == (Path("var/samples.duckdb"), "s3://bucket/prefix")
    assert url.size_bytes is None


def test_credentials_and_the_usual_port_do_not_tell_two_places_apart() -> None:
    url = parse_store_url("influxdb://ada:x@DB:8086/fleet")
    other = parse_store_url("influxdb://bob:y@db/fleet/")

    assert url.canonical == other.canonical


def test_two_databases_of_a_server_are_two_places() -> None:
    fleet, old = (parse_store_url(f"influxdb://db:8086/{name}") for name in ("fleet", "old"))

    assert fleet.canonical != old.canonical


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        (
            "influxdb:///fleet",
            r"influxdb:// URL has no host; write influxdb://user:password@host",
        ),
        ("victoriametrics://", r"has no host; write victoriametrics://host:8428"),
        ("influxdb://ada:hunter2@db:http/fleet", r"port must be a number from 1 to 65535"),
        ("influxdb://ada:hun/ter2@db:8086/fleet", r"must be percent-encoded"),
        ("influxdb://db:0/fleet", r"has no host"),
        ("duckdb:///a.duckdb?files=gs://bucket", r"write files=s3://bucket/prefix"),
        ("duckdb:///a.duckdb?files=s3://", r"write files=s3://bucket/prefix"),
        ("duckdb://?files=s3://bucket", r"in memory has no files"),
        ("duckdb:///a.duckdb?file=s3://bucket", r"no 'file', only files="),
        ("duckdb:///a.duckdb?layout=hive", r"write layout=open or layout=compact"),
        ("duckdb://?layout=open", r"in memory has no files"),
    ],
)
def test_an_error_has_the_correct_form_and_no_secret(url: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault) as caught:
        parse_store_url(url)

    assert "hun" not in str(caught.value)


def test_an_error_names_the_option_with_the_url() -> None:
    with pytest.raises(ConfigurationError, match=r"^--to: the time series URL has no scheme"):
        parse_store_url("samples.duckdb", source="--to")

import pytest

from core.errors import ConfigurationError
from timeseries.influxdb.address import parse_address


def test_a_database_of_1_x_is_named_by_the_path() -> None:
    address = parse_address("influxdb://ann:p%40ss@db.example:8087/vedette?rp=year&version=1.8")

    assert address.base_url == "http://db.example:8087"
    assert (address.user, address.password) == ("ann", "p@ss")
    assert (address.database, address.retention_policy) == ("vedette", "year")
    assert address.bucket == "vedette/year"
    assert address.version == (1, 8)


def test_a_bucket_of_2_x_is_named_by_a_parameter() -> None:
    address = parse_address("influxdbs://db.example/?org=acme&bucket=samples&token=t0k3n")

    assert address.base_url == "https://db.example:8086"
    assert (address.organization, address.bucket, address.token) == ("acme", "samples", "t0k3n")
    assert address.database == "samples"
    assert address.version is None


def test_an_ipv6_host_is_in_brackets() -> None:
    assert parse_address("influxdb://[::1]:8086/x").base_url == "http://[::1]:8086"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("influxdb://db.example", "the database is missing"),
        ("influxdb:///vedette", "has no host"),
        ("influxdb://db.example:port/x", "port"),
        ("influxdb://db.example/x?version=new", "version=new"),
        ("influxdb://db.example/x?retention=1h", "retention="),
        ("http://db.example/x", "influxdb://"),
        ("victoriametrics://db.example", "influxdb://"),
    ],
)
def test_an_invalid_url_is_rejected_with_the_reason(url: str, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        parse_address(url)


def test_all_errors_after_the_host_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_address("influxdb://db.example/?version=new&retention=1h")

    assert len(raised.value.problems) == 3


def test_secrets_are_not_shown() -> None:
    address = parse_address("influxdb://ann:hunter2@db.example/x?token=t0k3n")

    assert "hunter2" not in repr(address)
    assert "t0k3n" not in repr(address)

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
    assert (address.organisation, address.bucket, address.token) == ("acme", "samples", "t0k3n")
    assert address.database == "samples"
    assert address.version is None


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert parse_address("influxdb://[::1]:8086/x").base_url == "http://[::1]:8086"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("influxdb://db.example", "the database is missing"),
        ("influxdb:///vedette", "the host is missing"),
        ("influxdb://db.example:port/x", "the port is no number"),
        ("influxdb://db.example/x?version=new", "version=new is no version"),
        ("influxdb://db.example/x?retention=1h", "retention= is not known"),
        ("http://db.example/x", "begins with influxdb://"),
    ],
)
def test_a_faulty_url_is_refused_with_what_is_wrong(url: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        parse_address(url)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as told:
        parse_address("influxdb://:nine/?version=new")

    assert len(told.value.faults) == 4


def test_secrets_are_not_shown() -> None:
    address = parse_address("influxdb://ann:hunter2@db.example/x?token=t0k3n")

    assert "hunter2" not in repr(address)
    assert "t0k3n" not in repr(address)

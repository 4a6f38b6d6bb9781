"""Which host a series of a write token is of."""

import pytest

from access.identity.agent_registry import WriteGrant
from access.ingest.hosts import host_name
from tenants.fleet.appliance_changes import appliance_name_errors
from tests.cast import NOON

GRANT = WriteGrant("t1", "acme", "*", NOON)


@pytest.mark.parametrize(
    ("instance", "name"),
    [
        ("gpu-01:9100", "gpu-01"),
        ("gpu-01.example.com", "gpu-01.example.com"),
        ("https://gpu-01:9100/metrics", "gpu-01"),
        ("10.0.0.5:9100", "10.0.0.5"),
        ("[::1]:9100", "0--1"),
        ("http://[fe80::1%25eth0]:9100/metrics", "fe80--1"),
        ("[2001:DB8:0::5]", "2001-db8--5"),
        ("fe80::", "fe80--0"),
        ("", ""),
    ],
)
def test_an_instance_gives_the_name_of_an_appliance(instance: str, name: str) -> None:
    assert host_name({"instance": instance}, GRANT) == name
    assert not name or appliance_name_errors(name) == {}


def test_a_tag_host_goes_before_an_instance() -> None:
    assert host_name({"host": "a", "instance": "b:9100"}, GRANT) == "a"
    assert host_name({"host": "::1", "instance": "b:9100"}, GRANT) == "0--1"

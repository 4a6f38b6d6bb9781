"""Which addresses lead out into the Internet, and how networks are named."""

from ipaddress import ip_address, ip_network

import pytest

from core.errors import ConfigurationError
from core.networks import is_public, is_within, parse_networks
from core.settings import load_server_settings


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "1.1.1.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_an_address_of_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",  # noqa: S104
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "192.0.0.1",
        "192.0.0.8",
        "192.0.0.9",
        "192.0.0.255",
        "192.88.99.1",
        "fec0::1",
        "feff::1",
        "::2",
        "2001:1::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
    ],
)
def test_an_address_of_this_host_or_network_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "::127.0.0.1",
        "::8.8.8.8",  # no host has such an address
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:0:127.0.0.1",
        "::ffff:192.0.0.8",
        "64:ff9b::a00:1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::a00:1",
        "64:ff9b:1:a00:1::808:808",  # 10.0.0.1 behind a prefix of 48 bits
        "2002:a00:1::1",
        "2002:7f00:1::808:808",
        "2001:0:808:808::f5ff:fffe",  # Teredo with the client 10.0.0.1
        "2001:0:a00:1::f7f7:f7f7",  # Teredo with the server 10.0.0.1
    ],
)
def test_a_private_address_written_as_ipv6_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


def test_an_address_is_within_a_network_in_either_way_of_writing() -> None:
    networks = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    inside = ["10.9.9.9", "::ffff:10.9.9.9", "fd12::1"]
    assert all(is_within(ip_address(text), networks) for text in inside)
    assert not any(is_within(ip_address(text), networks) for text in ("11.0.0.1", "::1"))


def test_networks_are_separated_by_commas_and_an_address_is_a_network() -> None:
    networks = parse_networks(" 10.0.0.0/8, fd00::/8 ,192.0.2.7,", setting="x")
    assert [str(network) for network in networks] == ["10.0.0.0/8", "fd00::/8", "192.0.2.7/32"]


def test_every_error_in_both_settings_is_reported_at_the_start() -> None:
    environ = {
        "VEDETTE_TRUSTED_PROXIES": "10.0.0.1/8, proxy.example",
        "VEDETTE_WEBHOOK_ALLOWED_NETWORKS": "10.0.0.0/99",
    }
    with pytest.raises(ConfigurationError) as caught:
        load_server_settings(environ)
    places = [fault.partition(":")[0] for fault in caught.value.problems]
    assert places == ["trusted_proxies", "trusted_proxies", "webhook_allowed_networks"]

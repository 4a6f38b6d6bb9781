"""Networks in settings, and which addresses are public.

An address that is not *public* belongs to this host or the operator's network, or to no host:
loopback, private, link-local (cloud metadata services), shared, reserved, multicast.
"""

import ipaddress

from core.errors import ConfigurationError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# NAT64: the last 32 bits are an IPv4 address (RFC 6052). The local prefix 64:ff9b:1::/48 has other
# layouts, and is not public.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Global unicast, and special networks in it and in IPv4 that Python releases judge differently:
# protocol assignments, 6to4 relays, Teredo with its embedded address in disguise, documentation.
_IPV6_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20"),
    )
)
_IPV4_MASK = 0xFFFFFFFF


def parse_networks(text: str, *, setting: str) -> tuple[Network, ...]:
    """Return the networks of a comma-separated setting; a single address is a network of one.

    Raises:
        ConfigurationError: names each invalid one.
    """
    networks: list[Network] = []
    errors: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError as error:
            errors.append(f"{setting}: {error}; write networks like 10.0.0.0/8, fd00::/8")
    if errors:
        raise ConfigurationError(errors, source="The configuration")
    return tuple(networks)


def is_within(address: Address, networks: tuple[Network, ...]) -> bool:
    """Return whether an address, in any notation, belongs to one of the networks."""
    return any(form in network for form in _forms(address) for network in networks)


def is_public(address: Address) -> bool:
    """Return whether an address and any IPv4 address embedded in it are public."""
    return all(_is_public(form) for form in _forms(address))


def _is_public(address: Address) -> bool:
    is_unicast = address.version == 4 or address in _IPV6_UNICAST  # noqa: PLR2004 - IP version
    is_special = address.is_multicast or any(address in network for network in _SPECIAL)
    return address.is_global and is_unicast and not is_special


def _forms(address: Address) -> list[Address]:
    """Return the address, or the IPv4 address that it embeds."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & _IPV4_MASK)]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    return [address]

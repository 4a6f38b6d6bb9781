"""Networks that an operator names, and which addresses lead out into the Internet.

An address that is not *public* leads to this host, to the operator's own network or to nowhere:
loopback, private, link-local (where clouds keep their credentials), shared, reserved, multicast.
"""

import ipaddress

from core.errors import ConfigurationError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# IPv6 that a translator turns into the IPv4 address of its last 32 bits (RFC 6052, RFC 8215).
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_IPV4_MASK = 0xFFFFFFFF


def parse_networks(text: str, *, setting: str) -> tuple[Network, ...]:
    """Return the networks of a comma-separated setting; an address alone is a network of one.

    Raises:
        ConfigurationError: names each one that is no network.
    """
    found: list[Network] = []
    faults: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as error:
            faults.append(f"{setting}: {error}; write networks like 10.0.0.0/8, fd00::/8")
    if faults:
        raise ConfigurationError(faults, source="The configuration")
    return tuple(found)


def is_within(address: Address, networks: tuple[Network, ...]) -> bool:
    """Return whether an address is of one of the networks, in whatever way it is written."""
    return any(form in network for form in _forms(address) for network in networks)


def is_public(address: Address) -> bool:
    """Return whether an address leads into the Internet, and so does any IPv4 one within it."""
    return all(form.is_global and not form.is_multicast for form in _forms(address))


def _forms(address: Address) -> list[Address]:
    """Return the address, or the IPv4 address that it stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if any(address in network for network in _NAT64):
        return [ipaddress.IPv4Address(int(address) & _IPV4_MASK)]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    return [address]

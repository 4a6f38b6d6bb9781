"""Names of hosts as programs report them: with a domain, without one, or an address."""

import ipaddress


def is_same_host(first: str, second: str) -> bool:
    """Return whether two names are of one host.

    A name without a domain is that of any host with this name. Two domains are two hosts, and an
    address is only itself: a part of it is no name.
    """
    names = [name.lower().removesuffix(".") for name in (first, second)]
    if names[0] == names[1]:
        return True
    if any(map(_is_address, names)) or len({"." in name for name in names}) == 1:
        return False
    return names[0].partition(".")[0] == names[1].partition(".")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

"""Where a webhook may connect to: never into the operator's own network, unless allowed.

A tenant names the web address, the server connects. So each address that the name leads to is
checked, and the connection goes to a checked one: asking for the name again when connecting would
let its owner answer otherwise the second time (DNS rebinding).
"""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from core.networks import Address, Network, is_public, is_within

Resolve = Callable[[str, int], list[str]]


class RefusedAddressError(Exception):
    """The name leads to an address that webhooks must not reach."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as this host would connect to it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """Which addresses may be connected to.

    Attributes:
        allowed: networks that are open although they are not public.
        resolve: turns a name and a port into addresses.
    """

    allowed: tuple[Network, ...] = ()
    resolve: Resolve = resolve

    def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses to try, in the order of the resolver.

        Raises:
            OSError: the name has no address.
            RefusedAddressError: one of them is closed; the others are then not tried either.
        """
        # A zone says through which interface: link-local, and closed with or without it.
        texts = [text.partition("%")[0] for text in self.resolve(host, port)]
        found = [ipaddress.ip_address(text) for text in texts]
        if not all(self._is_open(address) for address in found):
            raise RefusedAddressError
        return found

    def _is_open(self, address: Address) -> bool:
        return is_within(address, self.allowed) or is_public(address)

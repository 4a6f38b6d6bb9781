"""Where a webhook may connect to: never into the operator's own network, unless allowed.

A tenant names the web address, the server connects. So each address that the name leads to is
checked, and the connection goes to a checked one: asking for the name again when connecting would
let its owner answer otherwise the second time (DNS rebinding).
"""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from urllib.parse import SplitResult

from core.networks import Address, Network, is_public, is_within

Resolve = Callable[[str, int], list[str]]

PORTS = {"http": 80, "https": 443}
RESOLVE_SECONDS = 5.0
# Lookups that nobody waits for any more end by themselves, some time.
MOST_LOOKUPS = 16


class RefusedAddressError(Exception):
    """The name leads to an address that webhooks must not reach."""


def host_of(url: SplitResult) -> str:
    """Return the name in the letters that DNS knows.

    Raises:
        OSError: it is no name at all.
    """
    try:
        return (url.hostname or "").encode("idna").decode()
    except UnicodeError as error:
        raise OSError("the host is no name") from error


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as this host would connect to it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class TimedResolver:
    """Asks for a name for so long and no longer, which the system's resolver can't be told.

    Args:
        resolve: asks.
        seconds: how long an answer is waited for.
        most: how many lookups may go on at a time, those that nobody waits for included.
    """

    def __init__(
        self,
        resolve: Resolve = resolve,
        *,
        seconds: float = RESOLVE_SECONDS,
        most: int = MOST_LOOKUPS,
    ) -> None:
        self._resolve = resolve
        self._seconds = seconds
        self._free = BoundedSemaphore(most)

    def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name.

        Raises:
            OSError: it has none.
            TimeoutError: nobody answered in time.
        """
        if not self._free.acquire(timeout=self._seconds):
            raise TimeoutError("too many names are being asked for")
        answers = SimpleQueue[list[str] | OSError]()
        Thread(target=self._ask, args=(host, port, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=self._seconds)
        except Empty as error:
            raise TimeoutError(f"nobody tells the address of {host}") from error
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _ask(self, host: str, port: int, answers: "SimpleQueue[list[str] | OSError]") -> None:
        try:
            answers.put(self._resolve(host, port))
        except OSError as error:
            answers.put(error)
        except ValueError:  # no name that could be asked for
            answers.put(OSError("the host is no name"))
        finally:
            self._free.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """Which addresses may be connected to.

    Attributes:
        allowed: networks that are open although they are not public.
        resolve: turns a name and a port into addresses.
    """

    allowed: tuple[Network, ...] = ()
    resolve: Resolve = field(default_factory=TimedResolver)

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

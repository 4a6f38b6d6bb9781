"""What the kernel of this host can do, tried in a namespace that ends with the trial."""

from collections.abc import Callable
from threading import Thread
from typing import NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from collector.gang_networks.firewall import firewall_problem
from collector.gang_networks.links import PLAIN, mtu_of
from collector.gang_networks.namespaces import scratch
from collector.gang_networks.wireguard import kernel_has_wireguard, program_path

_KINDS = ("bridge", "vxlan", "veth")


class HostAbilities(NamedTuple):
    """Why networks can't be made, if so; and whether there is WireGuard."""

    problem: str
    has_kernel_wireguard: bool
    has_wireguard: bool
    mtu_of: Callable[[str], int]


def host_abilities() -> HostAbilities:
    """Return what this host can do; takes a few milliseconds."""
    results: list[tuple[str, bool]] = []
    # In a thread of its own, which ends in the namespace at worst.
    trial = Thread(target=lambda: results.append(_try_kernel()), name="gang-networks-trial")
    trial.start()
    trial.join()
    problem, has_wireguard = results[0] if results else ("The kernel can't be asked.", False)
    return HostAbilities(
        problem or _sentence(firewall_problem()),
        has_kernel_wireguard=has_wireguard,
        has_wireguard=has_wireguard or program_path() is not None,
        mtu_of=_host_mtu,
    )


def _try_kernel() -> tuple[str, bool]:
    try:
        with scratch(), IPRoute() as links:
            for kind in _KINDS:
                options = {"vxlan_id": 1} if kind == PLAIN else {}
                try:
                    links.link("add", ifname=f"try-{kind}", kind=kind, **options)
                except NetlinkError as error:
                    return f"The kernel makes no interfaces of the kind {kind}: {error}.", False
            return "", kernel_has_wireguard(links)
    except OSError as error:
        return f"The agent may not make network namespaces: {error}.", False


def _host_mtu(address: str) -> int:
    try:
        with IPRoute() as links:
            return mtu_of(links, address)
    except (NetlinkError, OSError):
        return 0


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""

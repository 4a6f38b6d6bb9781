"""The interfaces of a gang's network on one appliance, by netlink.

The *switch* is a namespace with a bridge. Its ports are a VXLAN interface, which brings packets to
the gang's other appliances, and one end of a pair for each member here; the other end is in the
member's own namespace. Every interface is made in the namespace where it stays, so that none is
ever in the host's.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Interface

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from collector.gang_networks.namespaces import entered

BRIDGE = "bridge"
PLAIN, ENCRYPTED = "vxlan", "vxlan-wg"
MEMBER_NAME = "gang0"
"""Of the interface of a member."""
_ALL = "00:00:00:00:00:00"
_PERMANENT, _SELF, _NO_ARP = 0x80, 0x02, 0x40
_APPEND, _EXCLUSIVE = 0x800, 0x200


def mac_of(rank: int) -> str:
    """Return the address of a member's interface: locally administered, with its rank."""
    return f"02:56:00:00:{rank >> 8:02x}:{rank & 0xFF:02x}"


@contextmanager
def links_of(namespace: int) -> Iterator[IPRoute]:
    """Yield netlink of a namespace."""
    with entered(namespace):
        links = IPRoute()
    try:
        yield links
    finally:
        links.close()


def index_of(links: IPRoute, name: str) -> int | None:
    """Return the number of an interface; None without it."""
    return next(iter(links.link_lookup(ifname=name)), None)


def add_bridge(links: IPRoute) -> int:
    """Return the bridge of a switch, which is made if it isn't there."""
    index = index_of(links, BRIDGE)
    if index is None:
        # Nothing in the network speaks the spanning tree protocol.
        links.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        index = _index(links, BRIDGE)
    links.link("set", index=index, state="up")
    return index


def add_vxlan(
    underlay: IPRoute,
    links: IPRoute,
    switch: int,
    *,
    name: str,
    vni: int,
    port: int,
    local: str,
    mtu: int,
) -> int:
    """Return a VXLAN interface of a switch, whose packets go through another namespace.

    Args:
        underlay: netlink of the namespace of its packets.
        links: netlink of the switch.
        switch: the switch's namespace.
        name: PLAIN or ENCRYPTED.
        vni: the network's number.
        port: the UDP port.
        local: the address that its packets come from.
        mtu: the largest packet in it.
    """
    index = index_of(links, name)
    if index is not None and _vxlan_facts(links, index) != (vni, port, local):
        links.link("del", index=index)
        index = None
    if index is None:
        underlay.link(
            "add",
            ifname=name,
            kind="vxlan",
            vxlan_id=vni,
            vxlan_port=port,
            vxlan_local=local,
            # Nothing from outside adds an entry.
            vxlan_learning=0,
            net_ns_fd=switch,
        )
        index = _index(links, name)
    links.link("set", index=index, mtu=mtu, master=add_bridge(links))
    # Every appliance sends to all others itself: nothing goes from one tunnel to another one.
    links.brport("set", index=index, isolated=1)
    links.link("set", index=index, state="up")
    return index


def set_forwarding(links: IPRoute, index: int, peers: Mapping[str, Sequence[int]]) -> None:
    """Make the entries of a VXLAN interface match: the members at each address.

    What is for all, such as questions for an address, goes to each address.
    """
    wanted = {(mac_of(rank), address) for address, ranks in peers.items() for rank in ranks}
    wanted |= {(_ALL, address) for address in peers}
    entries = {
        (entry.get("lladdr"), entry.get("dst"))
        for entry in links.get_neighbours(family=_AF_BRIDGE)
        if entry["ifindex"] == index and entry.get("dst")
    }
    for mac, address in entries - wanted:
        _forwarding("del", links, index, mac, address)
    for mac, address in wanted - entries:
        _forwarding("append", links, index, mac, address)


def add_member(
    links: IPRoute,
    member: IPRoute,
    member_namespace: int,
    *,
    port: str,
    rank: int,
    address: IPv4Interface,
    mtu: int,
) -> None:
    """Connect a member's namespace to the switch, unless it is.

    Args:
        links: netlink of the switch.
        member: netlink of the member's namespace.
        member_namespace: that namespace.
        port: the name of the interface on the switch.
        rank: of the member.
        address: of the member.
        mtu: the largest packet.
    """
    index, own = index_of(links, port), index_of(member, MEMBER_NAME)
    if (index is None) != (own is None):
        # The other end of what is left was in a namespace that is gone.
        for present, netlink in ((index, links), (own, member)):
            if present is not None:
                netlink.link("del", index=present)
        index = None
    if index is None:
        peer = {"ifname": MEMBER_NAME, "address": mac_of(rank), "net_ns_fd": member_namespace}
        links.link("add", ifname=port, kind="veth", peer=peer)
        index, own = _index(links, port), _index(member, MEMBER_NAME)
    links.link("set", index=index, mtu=mtu, master=add_bridge(links))
    links.link("set", index=index, state="up")
    member.link("set", index=own, mtu=mtu)
    with _existing():
        member.addr("add", index=own, address=str(address.ip), prefixlen=address.network.prefixlen)
    member.link("set", index=own, state="up")


def remove(links: IPRoute, name: str) -> None:
    """Remove an interface, if it is there."""
    index = index_of(links, name)
    if index is not None:
        links.link("del", index=index)


def mtu_of(links: IPRoute, address: str) -> int:
    """Return the largest packet of the interface with an address; 0 if there is none."""
    for entry in links.get_addr(address=address):
        return int(next(iter(links.get_links(entry["index"]))).get("mtu"))
    return 0


_AF_BRIDGE = 7


def _index(links: IPRoute, name: str) -> int:
    index = index_of(links, name)
    if index is None:
        raise OSError(errno.ENODEV, f"the interface {name} is gone")
    return index


def _vxlan_facts(links: IPRoute, index: int) -> tuple[int, int, str]:
    details = next(iter(links.get_links(index))).get(("linkinfo", "data"))
    port = details.get("vxlan_port")
    return details.get("vxlan_id"), port, details.get("vxlan_local")


def _forwarding(command: str, links: IPRoute, index: int, mac: str, address: str) -> None:
    with _existing():
        links.fdb(command, ifindex=index, lladdr=mac, dst=address)


@contextmanager
def _existing() -> Iterator[None]:
    """Let what is there already, or is gone already, be as it should be."""
    try:
        yield
    except NetlinkError as error:
        if error.code not in {errno.EEXIST, errno.ENOENT}:
            raise

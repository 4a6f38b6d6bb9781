"""Makes the networks of gangs on this appliance, and removes them.

Each step may be repeated. All that is made is in the namespaces of containers with labels, apart
from a chain of iptables with the agent's name; so what a killed agent left is found and removed.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from collector.gang_networks import links as interfaces
from collector.gang_networks import wireguard
from collector.gang_networks.containers import NetworkContainers, namespace_of, sandbox_name
from collector.gang_networks.errors import LostError, NetworkError
from collector.gang_networks.firewall import Firewall
from collector.gang_networks.wireguard import Peer, Tunnels
from protocol.attempts import AttemptSpec
from protocol.gangs import Gang, GangAppliance, GangNetwork, member_address

log = logging.getLogger(__name__)

VXLAN_OVERHEAD_BYTES = 50
USUAL_MTU = 1500
OWN_NAMESPACE = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class _Switch:
    """A gang's switch: netlink of the host and of its namespace, and the portal's orders."""

    underlay: IPRoute
    links: IPRoute
    namespace: int
    gang_id: str
    network: GangNetwork
    own: GangAppliance
    mtu: int


class NetworkMaker:
    """Makes the networks of one appliance. For one thread.

    Args:
        containers: its switches and sandboxes.
        owner: the appliance's id.
        key: of WireGuard.
        has_wireguard: whether the kernel has it.
        underlay: the namespace that the gangs' packets go through.
        on_step: called with the name of each step before it.
    """

    def __init__(
        self,
        containers: NetworkContainers,
        *,
        owner: str,
        key: X25519PrivateKey,
        has_wireguard: bool,
        underlay: Path = OWN_NAMESPACE,
        on_step: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._containers = containers
        self._owner = owner
        self._on_step = on_step
        self._underlay = os.open(underlay, os.O_RDONLY | os.O_CLOEXEC)
        self._firewall = Firewall(owner, lambda: self._underlay)
        self._tunnels = Tunnels(owner, key, lambda: self._underlay, is_in_kernel=has_wireguard)

    def ensure(self, spec: AttemptSpec) -> str:
        """Make the network of a member, as far as it isn't there; return its sandbox's name.

        Raises:
            LostError: the member runs, but its sandbox is gone.
            NetworkError: it can't be made.
        """
        gang = spec.gang
        if gang is None or gang.network is None:
            raise NetworkError("The portal has not said which network its gang has.")
        try:
            return self._ensure(spec, gang, gang.network)
        except (NetlinkError, OSError) as error:
            raise NetworkError(f"The gang's network can't be made: {error}.") from error

    def clean(self, attempt_ids: Collection[str]) -> None:
        """Remove the networks that no other attempt than these needs.

        Raises:
            NetworkError: something is left.
        """
        self._on_step("clean containers")
        gang_ids = self._containers.remove_others(attempt_ids, self._on_step)
        self._on_step("clean filter")
        self._firewall.keep_only(gang_ids, self._on_step)
        self._on_step("clean interfaces")
        try:
            with interfaces.links_of(self._underlay) as underlay:
                self._tunnels.remove_strays(underlay)
        except (NetlinkError, OSError) as error:
            raise NetworkError(f"Interfaces can't be removed: {error}.") from error

    def close(self) -> None:
        """Disconnect; networks stay."""
        self._containers.close()
        os.close(self._underlay)

    def _ensure(self, spec: AttemptSpec, gang: Gang, network: GangNetwork) -> str:
        places = {seen.appliance_id: seen for seen in network.appliances}
        own = places.pop(self._owner, None)
        if own is None:
            raise NetworkError("The portal lists this appliance in none of the gang's places.")
        has_sandbox = self._containers.sandbox(spec.attempt_id) is not None
        if not has_sandbox and self._containers.has_started(spec.attempt_id):
            raise LostError("The container of its network was ended on the appliance.")
        others = list(places.values())
        self._on_step("switch")
        with (
            interfaces.links_of(self._underlay) as underlay,
            namespace_of(self._containers.ensure_switch(gang.gang_id)) as namespace,
            interfaces.links_of(namespace) as links,
        ):
            mtu = network.mtu or self._mtu(underlay, own, others)
            switch = _Switch(underlay, links, namespace, gang.gang_id, network, own, mtu)
            self._on_step("bridge")
            interfaces.add_bridge(links)
            self._ensure_plain(switch, [seen for seen in others if not seen.is_encrypted])
            self._ensure_encrypted(switch, [seen for seen in others if seen.is_encrypted])
            self._on_step("sandbox")
            sandbox = self._containers.ensure_sandbox(
                spec, gang, allows_egress=network.allows_egress
            )
            self._on_step("member")
            with (
                namespace_of(sandbox) as member_namespace,
                interfaces.links_of(member_namespace) as member,
            ):
                interfaces.add_member(
                    links,
                    member,
                    member_namespace,
                    port=f"m{sha256(spec.attempt_id.encode()).hexdigest()[:12]}",
                    rank=gang.rank,
                    address=member_address(network.subnet, gang.rank),
                    mtu=mtu,
                )
        self._on_step("made")
        return sandbox_name(spec.attempt_id)

    def _ensure_plain(self, switch: "_Switch", peers: Sequence[GangAppliance]) -> None:
        if not peers:
            interfaces.remove(switch.links, interfaces.PLAIN)
            return
        network = switch.network
        self._on_step("filter")
        addresses = {seen.address for seen in peers}
        self._firewall.admit(switch.gang_id, network.vxlan_port, addresses)
        self._on_step("vxlan")
        index = interfaces.add_vxlan(
            switch.underlay,
            switch.links,
            switch.namespace,
            name=interfaces.PLAIN,
            vni=network.vni,
            port=network.vxlan_port,
            local=switch.own.address,
            mtu=switch.mtu,
        )
        self._on_step("forwarding")
        members = {seen.address: seen.ranks for seen in peers}
        interfaces.set_forwarding(switch.links, index, members)

    def _ensure_encrypted(self, switch: "_Switch", peers: Sequence[GangAppliance]) -> None:
        if not peers:
            interfaces.remove(switch.links, interfaces.ENCRYPTED)
            interfaces.remove(switch.links, wireguard.INTERFACE)
            return
        missing = [seen.appliance_id for seen in peers if not seen.wireguard_public_key]
        if missing:
            raise NetworkError(f"Appliance {missing[0]} has no WireGuard for an encrypted network.")
        network, own = switch.network, wireguard.inner_address(switch.own.ranks)
        inner = {seen.appliance_id: wireguard.inner_address(seen.ranks) for seen in peers}
        self._on_step("tunnel")
        self._tunnels.ensure(
            switch.underlay,
            switch.links,
            switch.namespace,
            gang_id=switch.gang_id,
            port=network.wireguard_port,
            inner=own,
            peers=[
                Peer(seen.wireguard_public_key, seen.address, inner[seen.appliance_id])
                for seen in peers
            ],
            mtu=switch.mtu + VXLAN_OVERHEAD_BYTES,
        )
        self._on_step("vxlan in tunnel")
        index = interfaces.add_vxlan(
            switch.links,
            switch.links,
            switch.namespace,
            name=interfaces.ENCRYPTED,
            vni=network.vni,
            port=network.vxlan_port,
            local=own,
            mtu=switch.mtu,
        )
        self._on_step("forwarding in tunnel")
        members = {inner[seen.appliance_id]: seen.ranks for seen in peers}
        interfaces.set_forwarding(switch.links, index, members)

    def _mtu(self, underlay: IPRoute, own: GangAppliance, others: Sequence[GangAppliance]) -> int:
        mtu = interfaces.mtu_of(underlay, own.address) or USUAL_MTU
        is_encrypted = any(seen.is_encrypted for seen in others)
        return mtu - VXLAN_OVERHEAD_BYTES - (wireguard.OVERHEAD_BYTES if is_encrypted else 0)


@contextmanager
def sandbox_namespace(containers: NetworkContainers, attempt_id: str) -> Iterator[int | None]:
    """Yield the namespace of a member's sandbox; None if it doesn't run."""
    container = containers.sandbox(attempt_id)
    if container is None:
        yield None
        return
    with namespace_of(container) as namespace:
        yield namespace

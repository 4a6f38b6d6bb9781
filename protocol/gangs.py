"""The members of a gang: who they are, how their framework finds them, and their network.

Each member is an attempt of its own, on its own or on the same appliance. A gang has a *rank* for
each: 0 to `size - 1`.
"""

import re
from enum import StrEnum
from ipaddress import IPv4Interface, IPv4Network
from typing import Annotated

import msgspec

_NOT_IN_HOST_NAMES = re.compile(r"[^a-z0-9-]+")
_MAX_HOST_NAME = 63
MAX_RDMA_DEVICES = 64
Text = Annotated[str, msgspec.Meta(max_length=300)]


class Framework(StrEnum):
    """What starts the processes of a job on several appliances, and what they expect."""

    NONE = "none"
    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    PADDLE = "paddle"
    MPI = "mpi"
    RAY = "ray"
    JAX = "jax"


LED_BY_FIRST = frozenset({Framework.MPI, Framework.RAY})
"""Frameworks whose other members serve the first, and end well with it."""


LAUNCHER_DIR = "/run/vedette"
"""Where members that the first one leads have the launcher, the host files of MPI with it."""
GANG_INTERFACE = "gang0"
"""The interface of a member in its gang's private network."""


class JobNetwork(StrEnum):
    """The network of a job's containers.

    `bridge` is the engine's own, `gang` a private one of the members of a gang, `host` that of the
    appliance.
    """

    BRIDGE = "bridge"
    GANG = "gang"
    HOST = "host"


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the others know it: `address` is in the gang's network, or its appliance's."""

    rank: int
    name: str
    address: str
    appliance_id: str


class GangAppliance(msgspec.Struct, frozen=True, kw_only=True):
    """An appliance of a gang's network.

    Attributes:
        address: where its agent sends and receives the gang's packets.
        wireguard_public_key: of its agent; "" where it has none.
        is_encrypted: whether packets between it and the receiving appliance are: their sites
            differ, or the tenant encrypts all.
        ranks: the members there.
    """

    appliance_id: str
    address: str
    wireguard_public_key: str = ""
    is_encrypted: bool = False
    ranks: list[int] = []


class GangNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The private network of a gang: Ethernet over VXLAN, between sites in WireGuard.

    Attributes:
        vni: its number, which no other gang has at the same time.
        subnet: such as `10.96.0.0/16`; other gangs may have the same.
        wireguard_port: the UDP port of each appliance's tunnel of this gang.
        vxlan_port: the UDP port of its packets outside of tunnels.
        mtu: the largest packet of a member, in bytes, which fits all its paths; 0 is for the agent
            to choose.
        allows_egress: whether members also have the engine's bridge, and so reach the outside.
        appliances: all of them, this one too.
    """

    vni: int
    subnet: str
    wireguard_port: int
    vxlan_port: int = 0
    mtu: int = 0
    allows_egress: bool = False
    appliances: list[GangAppliance] = []


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """What a member's appliance gets to know of its gang.

    Attributes:
        gang_id: of the gang; with it start the names of what the agent makes.
        rank: of this member.
        members: all, by rank.
        framework: for what only an agent can do, such as MPI's launcher.
        network: None with the engine's bridge or the host's network.
        may_start: whether all members are prepared. Frameworks wait minutes for a member, and its
            data may take hours.
    """

    gang_id: str
    rank: int
    members: list[GangMember]
    framework: Framework = Framework.NONE
    network: GangNetwork | None = None
    may_start: bool = True

    @property
    def hosts(self) -> list[str]:
        """The members by rank, as the others find them: names are those of a private network."""
        return [member.name if self.network else member.address for member in self.members]


def job_network(network: str, framework: str, nodes: int) -> JobNetwork:
    """Return the network of a job: the one that it names, or the usual one.

    One that this version does not know is the engine's; requests for it are refused.
    """
    if network in tuple(JobNetwork):
        return JobNetwork(network)
    has_framework = framework not in {"", Framework.NONE}
    return JobNetwork.GANG if has_framework and nodes > 1 else JobNetwork.BRIDGE


def member_name(job_name: str, rank: int) -> str:
    """Return the name of a member as a host: the job's with its rank."""
    suffix = f"-{rank}"
    cleaned = _NOT_IN_HOST_NAMES.sub("-", job_name.lower()).strip("-") or "job"
    return f"{cleaned[: _MAX_HOST_NAME - len(suffix)].rstrip('-')}{suffix}"


def member_address(subnet: str, rank: int) -> IPv4Interface:
    """Return the address of a member in its gang's network."""
    network = IPv4Network(subnet)
    return IPv4Interface((network.network_address + rank + 1, network.prefixlen))


class NetworkAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an appliance offers to gangs, in its inventory.

    Attributes:
        address: where other appliances of its site reach its agent; "" makes no networks.
        public_address: where appliances of other sites do; "" if they can't.
        wireguard_public_key: "" where WireGuard can't run.
        mtu: the largest packet of the interface with `address`, in bytes; 0 if it is unknown.
        can_make_networks: whether the agent may make interfaces.
        can_use_host: whether it gives jobs the host's network and RDMA devices, if a tenant allows
            it; agents of earlier versions don't.
        rdma_devices: such as `mlx5_0`.
        has_gpudirect_storage: whether the driver of GPUDirect Storage is loaded.
        problem: why it can't make networks.
    """

    address: Text = ""
    public_address: Text = ""
    wireguard_public_key: Text = ""
    mtu: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    can_make_networks: bool = False
    can_use_host: bool = False
    rdma_devices: Annotated[list[Text], msgspec.Meta(max_length=MAX_RDMA_DEVICES)] = []
    has_gpudirect_storage: bool = False
    problem: Text = ""

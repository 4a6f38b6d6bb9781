"""The networks that appliances can give to jobs, and how far a gang's may reach."""

from collections.abc import Mapping
from enum import IntEnum

from jobqueue.executors.abilities import Need
from protocol.gangs import NetworkAbilities


class Reach(IntEnum):
    """Where an appliance's members of a gang with a private network may have others."""

    NONE = 0
    ALONE = 1
    SITE = 2
    ANYWHERE = 3


def missing_networks(network: NetworkAbilities) -> Mapping[Need, str]:
    """Return the needs of jobs' networks that an appliance can't meet, and why."""
    missing = {}
    if not network.can_make_networks:
        why = network.problem.rstrip(".") or "its agent is of an earlier version, update it"
        missing[Need.GANG_NETWORK] = f"makes no private networks for gangs: {why}"
    if not network.can_use_host:
        missing[Need.HOST_NETWORK] = "its agent gives no job the host's network; update the agent"
    if not (network.can_use_host and network.rdma_devices):
        missing[Need.RDMA] = "has no RDMA devices"
    return missing


def reach_of(network: NetworkAbilities, *, encrypts: bool) -> Reach:
    """Return how far a private network reaches from an appliance.

    `encrypts` is the tenant's setting for packets within a site.
    """
    if not network.can_make_networks:
        return Reach.NONE
    has_tunnel = bool(network.wireguard_public_key)
    if not network.address or (encrypts and not has_tunnel):
        return Reach.ALONE
    return Reach.ANYWHERE if has_tunnel and network.public_address else Reach.SITE

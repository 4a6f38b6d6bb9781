"""The variables of communication libraries that follow from network and GPUs of a gang.

Sources: NCCL's documentation, "Environment Variables"; PyTorch's, "Choosing the network interface
to use"; the MCA parameters of Open MPI; UCX's FAQ.
"""

from collections import Counter
from collections.abc import Iterator

from jobqueue.gangs.variables import Place, Variable
from protocol.gangs import GANG_INTERFACE, Framework, Gang, JobNetwork, NetworkAbilities


def topology_variables(
    place: Place, gang: Gang | None, abilities: NetworkAbilities
) -> Iterator[Variable]:
    """Yield the variables of NCCL, Gloo, Open MPI and UCX for a member."""
    rdma_devices = abilities.rdma_devices if place.job.uses_rdma else []
    if place.job.framework == Framework.MPI:
        yield Variable(
            "OMPI_MCA_btl_vader_single_copy_mechanism",
            "none",
            "A container may not read the memory of another process.",
        )
    if gang is not None and place.network is JobNetwork.GANG:
        yield from _interface(place, has_rdma=bool(rdma_devices))
    if place.job.wants_gpus and place.size > 1:
        yield from _nccl(place, rdma_devices)
    if gang is not None and place.job.wants_gpus and place.network is JobNetwork.HOST:
        yield from _host_id(place, gang)
    if rdma_devices:
        devices = ",".join(f"{name}:1" for name in rdma_devices)
        yield Variable("UCX_NET_DEVICES", devices, "The appliance's RDMA devices.")


def _interface(place: Place, *, has_rdma: bool) -> Iterator[Variable]:
    reason = "The interface of the gang's network; others don't lead to members."
    yield Variable("GLOO_SOCKET_IFNAME", GANG_INTERFACE, reason)
    yield Variable("TP_SOCKET_IFNAME", GANG_INTERFACE, reason)
    if place.job.wants_gpus:
        yield Variable("NCCL_SOCKET_IFNAME", f"={GANG_INTERFACE}", reason)
    if place.job.framework != Framework.MPI:
        return
    yield Variable("OMPI_MCA_btl_tcp_if_include", GANG_INTERFACE, reason)
    yield Variable("OMPI_MCA_oob_tcp_if_include", GANG_INTERFACE, reason)
    yield Variable("PRTE_MCA_prte_if_include", GANG_INTERFACE, reason)
    if not has_rdma:
        yield Variable("UCX_NET_DEVICES", GANG_INTERFACE, reason)


def _nccl(place: Place, rdma_devices: list[str]) -> Iterator[Variable]:
    if rdma_devices:
        devices = f"={','.join(rdma_devices)}"
        yield Variable("NCCL_IB_HCA", devices, "The appliance's RDMA devices.")
    elif place.job.uses_rdma:
        yield Variable("NCCL_IB_DISABLE", "1", "The appliance has no RDMA devices.")
    else:
        yield Variable("NCCL_IB_DISABLE", "1", "The job has no RDMA devices: uses_rdma is not set.")
    if not place.job.gpus:
        reason = "Parts of GPUs don't reach each other's memory."
        yield Variable("NCCL_P2P_DISABLE", "1", reason)


def _host_id(place: Place, gang: Gang) -> Iterator[Variable]:
    members = Counter(member.appliance_id for member in gang.members)
    if members[gang.members[place.rank].appliance_id] > 1:
        yield Variable(
            "NCCL_HOSTID",
            f"member-{place.rank}",
            "Other members on this appliance are in containers of their own: they share no memory.",
        )
